// SPDX-License-Identifier: AGPL-3.0-only
//! The edge's one thread. It never takes the interpreter's lock: what it has to say goes into the
//! inbox, what it has to do comes out of the outbox. A panic ends the task that it happens in, but
//! for the one that the others depend on: that ends the process.

use std::io;
use std::net::TcpListener;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{spawn_local, LocalSet};
use tokio::time::{sleep, Instant};

use crate::calls::{Out, Taken};
use crate::connection::LAST_WORDS;
use crate::listener::listen;
use crate::outbox::{Command, Outbox};
use crate::state::{Contract, Shared, State};
use crate::status::Status;

pub fn start(
    contract: Contract,
    shared: Shared,
    listeners: Vec<TcpListener>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // They are entered before the thread begins, so that what is wrong with them can be told.
    let listeners = {
        let _entered = runtime.enter();
        listeners
            .into_iter()
            .map(tokio::net::TcpListener::from_std)
            .collect::<io::Result<Vec<_>>>()?
    };
    std::thread::Builder::new().name("fila-edge".into()).spawn(move || {
        let tasks = LocalSet::new();
        let work = run(contract, shared, listeners);
        if catch_unwind(AssertUnwindSafe(|| tasks.block_on(&runtime, work))).is_err() {
            // A broker that hears nobody and looks well is worse than one that has ended: that one
            // is started again, and what it has confirmed is on disk.
            std::process::abort();
        }
    })
}

async fn run(contract: Contract, shared: Shared, listeners: Vec<tokio::net::TcpListener>) {
    let outbox = shared.outbox.clone();
    let state = State::new(contract, shared);
    let (drain, draining) = watch::channel(false);
    for listener in listeners {
        spawn_local(listen(state.clone(), listener, draining.clone()));
    }
    dispatch(&state, &outbox, &drain).await;
    let _ = drain.send(true);
    state.calls.end_all(&Status::shutting_down());
    let deadline = Instant::now() + LAST_WORDS;
    while state.figures.connections.get() > 0 && Instant::now() < deadline {
        sleep(Duration::from_millis(5)).await;
    }
}

/// Do what Python wants until it wants to close.
async fn dispatch(state: &Rc<State>, outbox: &Arc<Outbox>, drain: &watch::Sender<bool>) {
    loop {
        for command in outbox.take().await {
            if matches!(command, Command::Close) {
                return;
            }
            // One that fails must not take the others' answers with it.
            let _ = catch_unwind(AssertUnwindSafe(|| apply(state, drain, command)));
        }
    }
}

fn apply(state: &State, drain: &watch::Sender<bool>, command: Command) {
    let calls = &state.calls;
    match command {
        Command::Answer { id, content } => {
            if let Some(call) = calls.end(id) {
                call.answer(content, &state.unread);
            }
        }
        Command::Open { id } => {
            if let Some(call) = calls.find(id) {
                call.push(Out::Headers);
            }
        }
        Command::Write { id, content } => {
            if let Some(call) = calls.find(id) {
                call.push(Out::Frame { content, taken: Taken::Told });
            }
        }
        Command::Finish { id, content } => {
            if let Some(call) = calls.find(id) {
                call.push(Out::Frame { content, taken: Taken::ToldLast });
                call.push(Out::End(Status::ok()));
            }
        }
        Command::Reply { id, content } => {
            if let Some(call) = calls.find(id) {
                call.reply(content, &state.unread);
            }
        }
        Command::End { id, status } => {
            if let Some(call) = calls.end(id) {
                call.end(status);
            }
        }
        Command::More { id, count } => {
            if let Some(call) = calls.find(id) {
                call.more(count);
            }
        }
        Command::Serving(is_serving) => state.health.set(is_serving),
        Command::Drain => drop(drain.send(true)),
        Command::Close => {}
    }
}

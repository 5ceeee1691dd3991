// SPDX-License-Identifier: AGPL-3.0-only
//! Concurrent calls of one client share batch requests. Nothing lingers.
//!
//! A few requests may be under way at a time. A call that finds a free slot has a request made for
//! it at once; calls that find none wait, and the next free slot takes all of them, within a
//! batch's limits. So batches grow only because calls piled up while the broker was busy with
//! earlier ones.
//!
//! A slot is a task of its own, so that a caller that gives up, by dropping its future, does not
//! take the others' request with it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::batch::{BATCH_BYTES_MAX, BATCH_ITEMS_MAX};
use crate::connection::{Connection, deadline_after, locked};
use crate::error::{Error, Result};
use crate::pipeline::Piped;
use crate::tracing::Trace;

// Two keep the broker busy while an answer is on its way; with more, batches get smaller.
const REQUESTS_UNDER_WAY_MAX: usize = 2;

/// One caller that waits for its item's outcome.
struct Seat<B: Piped> {
    number: u64,
    item: B::Item,
    size: usize,
    // What it takes of the bytes that may wait, for as long as it waits.
    _room: OwnedSemaphorePermit,
    deadline: Instant,
    trace: Trace,
    answer: oneshot::Sender<Result<B::Output>>,
}

struct State<B: Piped> {
    waiting: VecDeque<Seat<B>>,
    free_slots: usize,
    seats: u64,
}

/// Batches the items of concurrent callers for one RPC.
pub(crate) struct Coalescer<B: Piped> {
    connection: Arc<Connection>,
    state: Mutex<State<B>>,
}

impl<B: Piped> Coalescer<B> {
    pub(crate) fn new(connection: Arc<Connection>) -> Arc<Self> {
        let state =
            State { waiting: VecDeque::new(), free_slots: REQUESTS_UNDER_WAY_MAX, seats: 0 };
        Arc::new(Self { connection, state: Mutex::new(state) })
    }

    /// Sends one item, with others if there are any. Fails with the item's error, or the batch's,
    /// and at once when the client is closed.
    ///
    /// If doing it twice is harmless it is made anew and sent again while the broker is away.
    pub(crate) async fn call(
        self: &Arc<Self>,
        item: impl Fn() -> B::Item,
        is_repeatable: bool,
        timeout: Duration,
    ) -> Result<B::Output> {
        if !is_repeatable {
            return self.call_once(item(), timeout).await;
        }
        let _promise = self.connection.promises.give()?;
        let (deadline, trace) = (deadline_after(timeout), Trace::current());
        let submit = || self.submit(item(), deadline, trace.clone());
        match self.connection.retrying(deadline, submit).await {
            (Err(error), true) => B::after_repeat(error),
            (outcome, _) => outcome,
        }
    }

    /// [`call`](Self::call) of what is never sent twice.
    pub(crate) async fn call_once(
        self: &Arc<Self>,
        item: B::Item,
        timeout: Duration,
    ) -> Result<B::Output> {
        let _promise = self.connection.promises.give()?;
        self.submit(item, deadline_after(timeout), Trace::current()).await
    }

    async fn submit(
        self: &Arc<Self>,
        item: B::Item,
        deadline: Instant,
        trace: Trace,
    ) -> Result<B::Output> {
        if deadline <= Instant::now() {
            return Err(Error::too_late("the deadline passed before the request was sent"));
        }
        let size = item.encoded_len();
        let _room = self.connection.room(size, deadline).await?;
        let (answer, outcome) = oneshot::channel();
        let number =
            self.seat(|number| Seat { number, item, size, _room, deadline, trace, answer });
        match timeout_at(deadline, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(Error::cancelled("the runtime ended; the outcome is unknown")),
            Err(_) => Err(self.expired(number)),
        }
    }

    fn seat(self: &Arc<Self>, seat: impl FnOnce(u64) -> Seat<B>) -> u64 {
        let mut state = locked(&self.state);
        let number = state.seats;
        state.seats += 1;
        state.waiting.push_back(seat(number));
        if state.free_slots > 0 {
            state.free_slots -= 1;
            let slot = Slot { coalescer: Arc::clone(self), is_taken: true };
            // Not with the lock: a runtime that has ended drops the slot right here.
            drop(state);
            self.connection.runtime.spawn(slot.serve());
        }
        number
    }

    fn expired(&self, number: u64) -> Error {
        let mut state = locked(&self.state);
        let place = state.waiting.iter().position(|seat| seat.number == number);
        match place.and_then(|place| state.waiting.remove(place)) {
            Some(_) => {
                Error::too_late("no answer to earlier requests came in time; this one was not sent")
            }
            None => Error::too_late(""),
        }
    }
}

impl<B: Piped> State<B> {
    /// Removes the next batch from the queue, and with it callers who no longer wait.
    fn take(&mut self) -> Vec<Seat<B>> {
        let mut batch = Vec::new();
        let mut size = 0;
        while batch.len() < BATCH_ITEMS_MAX {
            let Some(seat) = self.waiting.pop_front() else { break };
            if seat.answer.is_closed() {
                continue;
            }
            size += seat.size;
            if size > BATCH_BYTES_MAX && !batch.is_empty() {
                self.waiting.push_front(seat);
                break;
            }
            batch.push(seat);
        }
        batch
    }
}

/// The right to have one request under way.
struct Slot<B: Piped> {
    coalescer: Arc<Coalescer<B>>,
    is_taken: bool,
}

impl<B: Piped> Slot<B> {
    async fn serve(mut self) {
        while let Some(batch) = self.next() {
            self.send(batch).await;
        }
    }

    /// The callers to serve next; with none the slot is free again. One step, so that nobody comes
    /// to wait in between.
    fn next(&mut self) -> Option<Vec<Seat<B>>> {
        let mut state = locked(&self.coalescer.state);
        let batch = state.take();
        if !batch.is_empty() {
            return Some(batch);
        }
        state.free_slots += 1;
        self.is_taken = false;
        None
    }

    async fn send(&self, batch: Vec<Seat<B>>) {
        let Some(deadline) = batch.iter().map(|seat| seat.deadline).max() else { return };
        let mut trace = None;
        let mut items = Vec::with_capacity(batch.len());
        let mut answers = Vec::with_capacity(batch.len());
        for seat in batch {
            // The request can carry one trace; each message has its own in its headers.
            trace.get_or_insert(seat.trace);
            items.push(seat.item);
            answers.push(seat.answer);
        }
        let connection = &self.coalescer.connection;
        let outcomes =
            B::send_together(connection, items, deadline, &trace.unwrap_or_default()).await;
        // A caller that has left by now does not want its answer; the others get theirs.
        match outcomes {
            Ok(outcomes) => {
                for (answer, outcome) in answers.into_iter().zip(outcomes) {
                    let _ = answer.send(outcome);
                }
            }
            Err(error) => {
                for answer in answers {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }
}

impl<B: Piped> Drop for Slot<B> {
    fn drop(&mut self) {
        // Only where the task was cut short: by the end of the runtime, or by a panic.
        if self.is_taken {
            let mut state = locked(&self.coalescer.state);
            state.free_slots += 1;
            if state.free_slots == REQUESTS_UNDER_WAY_MAX {
                // Nobody is left to serve them; they are told by the loss of their senders.
                state.waiting.clear();
            }
        }
    }
}

// SPDX-License-Identifier: AGPL-3.0-only
//! A worker while it runs.
//!
//! ```text
//!   consumer --message, slot--> task: handler --outcome--> ack or nack --> event
//!                                        |                  at most `prefetch` under way
//!                                        '-- the slot is free again
//! ```
//!
//! A task handles one message, or one batch, to the end, and belongs to nobody: what ends `run`, be
//! it that its future is dropped, only tells the tasks to cut their handlers off and to give back.
//! All slots being free means that no handler runs; all settlements being free, too, that all is
//! done.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::outcome::Outcome;
use super::{EventKind, Wish, Worker, WorkerEvent};
use crate::connection::{TIMEOUT_MAX, deadline_after};
use crate::consumer::{Consumer, Held};
use crate::error::Result;
use crate::message::{ConsumeMessage, Nack};
use crate::tracing::handling;

// The broker keeps no more of it.
const ERROR_BYTES_MAX: usize = 4096;

/// What runs for a worker. Its loss cuts off what still runs.
pub(super) struct Run(Arc<Shared>);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.cut.send_replace(true);
    }
}

struct Shared {
    worker: Worker,
    prefetch: u32,
    slots: Arc<Semaphore>,
    settlements: Arc<Semaphore>,
    cut: watch::Sender<bool>,
}

impl Run {
    pub(super) fn new(worker: Worker, prefetch: u32) -> Self {
        Self(Arc::new(Shared {
            slots: Arc::new(Semaphore::new(worker.concurrency as usize)),
            settlements: Arc::new(Semaphore::new(prefetch as usize)),
            prefetch,
            cut: watch::Sender::new(false),
            worker,
        }))
    }

    /// Hands messages to handlers for as long as there are any. Dropping the future loses none.
    pub(super) async fn feed(&self, consumer: &Consumer) -> Result<()> {
        let batch_size = self.0.worker.handler.batch_size();
        loop {
            let Ok(slot) = Arc::clone(&self.0.slots).acquire_owned().await else { return Ok(()) };
            let Some(first) = consumer.next_held().await else { return Ok(()) };
            let mut load = vec![first?];
            while load.len() < batch_size {
                // The end of the stream, if that is next, is found by the next round, too.
                let Some(held) = consumer.next_unread() else { break };
                load.push(held);
            }
            tokio::spawn(Arc::clone(&self.0).handle(load, slot));
        }
    }

    pub(super) async fn idle(&self) {
        // They are never closed, so this cannot fail.
        let _ = self.0.slots.acquire_many(self.0.worker.concurrency).await;
    }

    /// Waits until all is settled; cuts handlers off when their grace ends.
    pub(super) async fn finish(&self, stopped_at: Instant) {
        let mut wishes = self.0.worker.stop.0.subscribe();
        let mut grace_ends = stopped_at + self.0.worker.grace.min(TIMEOUT_MAX);
        loop {
            if let Wish::StopWithin(grace) = *wishes.borrow_and_update() {
                grace_ends = deadline_after(grace);
            }
            tokio::select! {
                biased;
                () = self.idle() => break,
                () = sleep_until(grace_ends) => break,
                _ = wishes.changed() => {}
            }
        }
        self.0.cut.send_replace(true);
        self.idle().await;
        // A handler's slot is free only when its settlement is taken.
        let _ = self.0.settlements.acquire_many(self.0.prefetch).await;
    }
}

impl Shared {
    /// Handles one load of messages, and settles what is open of it.
    async fn handle(self: Arc<Self>, load: Vec<Held>, slot: OwnedSemaphorePermit) {
        let began = Instant::now();
        let mut cut = self.cut.subscribe();
        let outcome = tokio::select! {
            biased;
            // The sender is this one's own, so this cannot fail.
            _ = cut.wait_for(|is_cut| *is_cut) => Outcome::Cut,
            outcome = self.outcome(&load) => outcome,
        };
        let took = began.elapsed();
        // Leases are kept until this is over.
        let Ok(_settling) = Arc::clone(&self.settlements).acquire_owned().await else { return };
        drop(slot);
        self.settle(&load, outcome, took).await;
    }

    async fn outcome(&self, load: &[Held]) -> Outcome {
        let handled = async {
            let limit = self.worker.handler_timeout.unwrap_or(Duration::MAX);
            // In here, so that a panic while the future is made is a panic of the handler, too.
            let handler = async { self.worker.handler.call(load).await };
            match timeout(limit, caught(handler)).await {
                Ok(Ok(Ok(()))) => Ok(()),
                Ok(Ok(Err(error))) => Err(Outcome::Error(error)),
                Ok(Err(panic)) => Err(Outcome::Panicked(panic)),
                Err(_) => Err(Outcome::TimedOut(limit)),
            }
        };
        let messages = load.iter().map(|(message, _)| &**message);
        handling(messages, handled, Outcome::error_type).await.err().unwrap_or(Outcome::Done)
    }

    async fn settle(&self, load: &[Held], outcome: Outcome, took: Duration) {
        let open = load.iter().map(|(message, _)| message).filter(|one| !one.is_settled());
        let open: Vec<_> = open.collect();
        let tell = |kind: EventKind, message: &ConsumeMessage, error: Option<&str>| {
            self.tell(&WorkerEvent { kind, message, took, error });
        };
        let error = match &outcome {
            Outcome::Done => None,
            other => Some(shortened(other.to_string())),
        };
        if let Outcome::TimedOut(_) = outcome {
            open.iter().for_each(|message| tell(EventKind::TimedOut, message, error.as_deref()));
        }
        let (kind, nack) = outcome.rule(error.clone().unwrap_or_default());
        let outcomes = self.send(&open, nack).await;
        for (message, outcome) in open.iter().zip(outcomes) {
            match outcome {
                Ok(()) => tell(kind, message, error.as_deref()),
                Err(failure) => {
                    let (queue, message_id) = (&message.queue, &message.id);
                    tracing::warn!(queue, message_id, error = %failure, "could not settle");
                    tell(EventKind::SettleFailed, message, Some(&failure.to_string()));
                }
            }
        }
    }

    /// One call for what is open; nothing for nothing.
    async fn send(&self, open: &[&ConsumeMessage], nack: Option<Nack>) -> Vec<Result<()>> {
        let client = &self.worker.client;
        let outcomes = match (open, nack) {
            ([], _) => return Vec::new(),
            ([message], None) => return vec![message.ack().await],
            ([message], Some(nack)) => return vec![message.nack(nack).await],
            (_, None) => client.ack_many(open.iter().copied()).await,
            (_, Some(nack)) => client.nack_many(open.iter().copied(), nack).await,
        };
        outcomes.unwrap_or_else(|error| vec![Err(error); open.len()])
    }

    fn tell(&self, event: &WorkerEvent<'_>) {
        let Some(on_event) = &self.worker.on_event else { return };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| on_event(event))) {
            let queue = &self.worker.queue;
            tracing::error!(queue, panic = text_of(&*panic), "on_event panicked");
        }
    }
}

/// A future whose panic is a result.
async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = pin!(work);
    poll_fn(|context| {
        // After a panic it is not polled again, so that nobody sees a state that is half done.
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(text_of(&*panic).to_owned())),
        }
    })
    .await
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

fn shortened(mut text: String) -> String {
    let fits = |end: &usize| text.is_char_boundary(*end);
    text.truncate((0..=ERROR_BYTES_MAX.min(text.len())).rev().find(fits).unwrap_or(0));
    text
}

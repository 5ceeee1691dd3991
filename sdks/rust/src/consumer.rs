// SPDX-License-Identifier: AGPL-3.0-only
//! A stream of leased messages that outlives its connection.
//!
//! ```text
//!   open --frame--> unread --> application           close, drop and Client::close end it
//!    ^                |
//!    '-- wait <-- UNAVAILABLE, or the broker ended the stream     any other error is handed out
//! ```
//!
//! A task of the consumer reads frames as they come, because only then it is known when their
//! leases began; the broker's credit bounds what there can be. It lives for as long as the
//! consumer, and gives back at the end what was never handed out: otherwise every restart of a
//! worker would hide those messages until their leases end, and count an attempt that nobody made.
//!
//! Nothing is handed out whose lease has ended; `leases` sees to it that this is rare.
//!
//! Here is what waits and how it is handed out; `reader` is the task.

mod batches;
mod reader;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, watch};

pub use self::batches::Batches;
use self::reader::Reader;
use crate::client::Client;
use crate::connection::{Connection, locked};
use crate::error::{Error, Result};
use crate::leases::{Frame, Hold, Leases};
use crate::message::ConsumeMessage;
use crate::proto;

// With leases of 30 s this suits handlers of up to 0.4 s, even if nobody extends anything, and a
// second worker finds something to do.
const DEFAULT_IN_FLIGHT_MAX: u32 = 64;
// Half of that: one frame is read while another one is worked off.
const DEFAULT_BATCH_SIZE: u32 = 32;

/// How messages of a queue are delivered to a [`Consumer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumeOptions {
    /// The most messages leased to the consumer at a time, 64 unless set.
    pub max_in_flight: u32,
    /// The most messages that arrive together, 32 unless set.
    pub batch_size: u32,
    /// How long each lease lasts; `None` takes the queue's visibility timeout.
    pub visibility_timeout: Option<Duration>,
    /// Whether the leases of messages that were not handed out yet are extended: yes unless set.
    pub extend_leases: bool,
}

impl Default for ConsumeOptions {
    fn default() -> Self {
        Self {
            max_in_flight: DEFAULT_IN_FLIGHT_MAX,
            batch_size: DEFAULT_BATCH_SIZE,
            visibility_timeout: None,
            extend_leases: true,
        }
    }
}

/// The messages of a queue as the broker leases them: a [`Stream`], or [`next`](Self::next) by
/// [`next`](Self::next).
///
/// Tasks may share it, in an [`Arc`]: each message goes to one of them. The leases of messages that
/// wait here are extended, and none is handed out whose lease has ended.
///
/// When the connection is lost the stream goes on with a new one. It hands out an error, and then
/// ends, where trying again would not help: an unknown queue, a key without permission. Dropping it
/// gives back in the background what was not handed out; [`close`](Self::close) waits for that.
pub struct Consumer {
    core: Arc<Core>,
    client: Client,
    arrival: Arrival,
}

/// What a poll of a stream waits for.
#[derive(Default)]
struct Arrival(Option<Pin<Box<OwnedNotified>>>);

/// A message, and the proof that its lease is kept.
pub(crate) type Held = (ConsumeMessage, Hold);

impl Consumer {
    pub(crate) fn new(core: Arc<Core>, client: Client) -> Self {
        Self { core, client, arrival: Arrival::default() }
    }

    /// The next message; `None` after an error or once the client was closed. Dropping the future
    /// loses no message.
    pub async fn next(&self) -> Option<Result<ConsumeMessage>> {
        let next = self.next_held().await?;
        Some(next.map(|(message, _)| message))
    }

    /// [`next`](Self::next), with its lease kept for as long as the caller likes.
    pub(crate) async fn next_held(&self) -> Option<Result<Held>> {
        loop {
            if let Some(next) = self.take() {
                return next;
            }
            let mut arrival = std::pin::pin!(self.core.arrived.notified());
            // Before looking again: what arrives from here on is not missed.
            arrival.as_mut().enable();
            if let Some(next) = self.take() {
                return next;
            }
            arrival.await;
        }
    }

    /// The next message if it is there already; errors and the end wait for [`next`](Self::next).
    pub(crate) fn next_unread(&self) -> Option<Held> {
        let (raw, hold) = self.core.take_message()?;
        Some((ConsumeMessage::new(raw, self.client.clone(), hold.frame_size()), hold))
    }

    /// What there is now; none if that is nothing, and what it holds is none after the end.
    fn take(&self) -> Option<Option<Result<Held>>> {
        match self.next_unread() {
            Some(held) => Some(Some(Ok(held))),
            None => self.core.take_ending().map(|failure| failure.map(Err)),
        }
    }

    /// Ends the stream and gives back what was not handed out, within about a second. Whoever waits
    /// for a message is told that there is none. Harmless twice.
    pub async fn close(&self) {
        self.core.close();
        self.core.ended().await;
    }
}

impl Arrival {
    fn poll_next(
        &mut self,
        consumer: &Consumer,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<ConsumeMessage>>> {
        loop {
            // An arrival that is waited for already wakes this task when there is something new.
            if self.0.is_none() {
                let mut arrival = Box::pin(Arc::clone(&consumer.core.arrived).notified_owned());
                arrival.as_mut().enable();
                self.0 = Some(arrival);
            }
            if let Some(next) = consumer.take() {
                self.0 = None;
                return Poll::Ready(next.map(|next| next.map(|(message, _)| message)));
            }
            if let Some(arrival) = &mut self.0 {
                ready!(arrival.as_mut().poll(context));
            }
            self.0 = None;
        }
    }
}

impl Stream for Consumer {
    type Item = Result<ConsumeMessage>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut arrival = std::mem::take(&mut self.arrival);
        let next = arrival.poll_next(&self, context);
        self.arrival = arrival;
        next
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Consumer")
            .field("queue", &self.core.request.queue)
            .finish_non_exhaustive()
    }
}

/// What is left of a frame.
struct Unread {
    frame: Arc<Frame>,
    messages: std::vec::IntoIter<proto::Message>,
}

enum Ending {
    Failed(Error),
    Over,
}

#[derive(Default)]
struct State {
    unread: VecDeque<Unread>,
    /// Handed out when nothing is unread.
    ending: Option<Ending>,
}

/// What a consumer shares with its client and with the task that reads for it.
pub(crate) struct Core {
    request: proto::ConsumeRequest,
    state: Mutex<State>,
    arrived: Arc<Notify>,
    closing: watch::Sender<bool>,
    // The other end is the task's, and goes with it.
    reading: watch::Receiver<()>,
}

impl Core {
    /// Opens a consumer in the background.
    pub(crate) fn open(
        connection: &Arc<Connection>,
        leases: &Arc<Leases>,
        request: proto::ConsumeRequest,
        is_kept: bool,
    ) -> Arc<Self> {
        let (alive, reading) = watch::channel(());
        let core = Arc::new(Self {
            request,
            state: Mutex::default(),
            arrived: Arc::default(),
            closing: watch::Sender::new(false),
            reading,
        });
        let reader = Reader::new(&core, connection, leases, is_kept);
        connection.runtime.spawn(async move {
            reader.run().await;
            drop(alive);
        });
        core
    }

    /// Ends it; what the task does then, [`ended`](Self::ended) waits for.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    pub(crate) async fn ended(&self) {
        let mut reading = self.reading.clone();
        // Nothing is ever sent, so this is the loss of the sender.
        let _ = reading.changed().await;
    }

    /// What it ended with, if it has and nothing is unread: an error, but only once.
    fn take_ending(&self) -> Option<Option<Error>> {
        let mut state = locked(&self.state);
        if !state.unread.is_empty() {
            // It came just now, and its arrival wakes who waits.
            return None;
        }
        let ending = std::mem::replace(state.ending.as_mut()?, Ending::Over);
        Some(match ending {
            Ending::Failed(error) => Some(error),
            Ending::Over => None,
        })
    }

    fn take_message(&self) -> Option<(proto::Message, Hold)> {
        let mut dropped = 0;
        let message = locked(&self.state).pop(&mut dropped);
        self.tell(dropped);
        message
    }

    /// A frame has come.
    fn put(&self, frame: Arc<Frame>, messages: Vec<proto::Message>) {
        let dropped = {
            let mut state = locked(&self.state);
            // An application that asks for nothing must not pile up what is nobody's any more.
            let dropped = state.drop_lost();
            state.unread.push_back(Unread { frame, messages: messages.into_iter() });
            dropped
        };
        // All of them: one alone might be a future that nobody polls any more.
        self.arrived.notify_waiters();
        self.tell(dropped);
    }

    fn end(&self, ending: Ending) {
        locked(&self.state).ending.get_or_insert(ending);
        self.arrived.notify_waiters();
    }

    fn tell(&self, dropped: usize) {
        if dropped > 0 {
            let queue = self.request.queue.as_str();
            tracing::debug!(queue, messages = dropped, "dropped messages whose leases had ended");
        }
    }
}

impl State {
    fn pop(&mut self, dropped: &mut usize) -> Option<(proto::Message, Hold)> {
        while let Some(Unread { frame, messages }) = self.unread.front_mut() {
            let place = frame.len() - messages.len();
            let next = if frame.is_leased() { messages.next() } else { None };
            let next = next.map(|message| (message, frame.hold(place)));
            if next.is_none() || messages.len() == 0 {
                *dropped += messages.len();
                self.unread.pop_front();
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }

    fn drop_lost(&mut self) -> usize {
        let before: usize = self.unread.iter().map(|unread| unread.messages.len()).sum();
        self.unread.retain(|unread| unread.frame.is_leased());
        before - self.unread.iter().map(|unread| unread.messages.len()).sum::<usize>()
    }
}

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

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tonic::Streaming;

use crate::batch::{Nack, send_many};
use crate::client::Client;
use crate::connection::{Connection, Service, chance, locked};
use crate::error::{Error, ErrorKind, Result};
use crate::leases::{Frame, Hold, Leases};
use crate::message::ConsumeMessage;
use crate::proto;
use crate::tracing::Trace;

// With leases of 30 s this suits handlers of up to 0.4 s, even if nobody extends anything, and a
// second worker finds something to do.
const DEFAULT_IN_FLIGHT_MAX: u32 = 64;
// Half of that: one frame is read while another one is worked off.
const DEFAULT_BATCH_SIZE: u32 = 32;
// Giving messages back is a courtesy: their leases end anyway, so it may not hold up a shutdown.
// First come the frames that are about to arrive, then the request that gives all of them back.
const DRAIN_TIME: Duration = Duration::from_millis(50);
const RELEASE_TIME: Duration = Duration::from_secs(1);

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
    // What a poll of the stream waits for.
    arrival: Option<Pin<Box<OwnedNotified>>>,
}

/// A message, and the proof that its lease is kept.
pub(crate) type Held = (ConsumeMessage, Hold);

impl Consumer {
    pub(crate) fn new(core: Arc<Core>, client: Client) -> Self {
        Self { core, client, arrival: None }
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

impl Stream for Consumer {
    type Item = Result<ConsumeMessage>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            // An arrival that is waited for already wakes this task when there is something new.
            if self.arrival.is_none() {
                let mut arrival = Box::pin(Arc::clone(&self.core.arrived).notified_owned());
                arrival.as_mut().enable();
                self.arrival = Some(arrival);
            }
            if let Some(next) = self.take() {
                self.arrival = None;
                return Poll::Ready(next.map(|next| next.map(|(message, _)| message)));
            }
            if let Some(arrival) = &mut self.arrival {
                ready!(arrival.as_mut().poll(context));
            }
            self.arrival = None;
        }
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
        let reader = Reader {
            core: Arc::clone(&core),
            connection: Arc::clone(connection),
            leases: Arc::clone(leases),
            is_kept,
            trace: Trace::current(),
            phase: Phase::Idle,
            opened_at: Instant::now(),
            attempts: 0,
            is_lost: false,
        };
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

type Frames = Streaming<proto::ConsumeResponse>;
type Opening = Pin<Box<dyn Future<Output = Result<Frames>> + Send>>;

enum Phase {
    Idle,
    // The broker may answer with its first frame only: for as long as the queue is empty.
    Opening(Opening),
    Reading(Box<Frames>),
}

/// The task that reads frames.
struct Reader {
    core: Arc<Core>,
    connection: Arc<Connection>,
    leases: Arc<Leases>,
    is_kept: bool,
    trace: Trace,
    phase: Phase,
    opened_at: Instant,
    attempts: u32,
    is_lost: bool,
}

impl Reader {
    async fn run(mut self) {
        let core = Arc::clone(&self.core);
        let mut closing = core.closing.subscribe();
        let closed = async {
            // The sender is the core's own, so this cannot fail.
            let _ = closing.wait_for(|is_closing| *is_closing).await;
        };
        let mut closed = std::pin::pin!(closed);
        tokio::select! {
            biased;
            () = &mut closed => {}
            error = self.read() => {
                let is_closed = error.kind() == ErrorKind::ClientClosed;
                core.end(if is_closed { Ending::Over } else { Ending::Failed(error) });
                // What was read is still to be handed out.
                closed.await;
            }
        }
        let unread = {
            let mut state = locked(&core.state);
            state.ending = Some(Ending::Over);
            std::mem::take(&mut state.unread)
        };
        core.arrived.notify_waiters();
        // Held until they are given back, but not those that have no lease any more.
        let kept = unread.into_iter().filter(|unread| unread.frame.is_leased());
        let mut messages: Vec<_> = kept.flat_map(|unread| unread.messages).collect();
        drain(self.phase, &mut messages).await;
        release(&self.connection, &core.request.queue, messages).await;
    }

    /// Reads until there is an error that trying again would not cure. Dropping the future loses no
    /// frame.
    async fn read(&mut self) -> Error {
        loop {
            let ending = match &mut self.phase {
                Phase::Idle => {
                    self.opened_at = Instant::now();
                    self.phase = Phase::Opening(self.open());
                    continue;
                }
                Phase::Opening(opening) => match opening.as_mut().await {
                    Ok(frames) => {
                        self.phase = Phase::Reading(Box::new(frames));
                        self.found();
                        continue;
                    }
                    Err(error) => Some(error),
                },
                Phase::Reading(frames) => match frames.message().await {
                    Ok(Some(frame)) => {
                        self.attempts = 0;
                        self.put(frame.messages);
                        continue;
                    }
                    Ok(None) => None,
                    Err(status) => Some(self.connection.failure(status)),
                },
            };
            self.phase = Phase::Idle;
            match self.lost(ending) {
                Ok(pause) => sleep(pause).await,
                Err(last) => return last,
            }
        }
    }

    fn open(&self) -> Opening {
        let stub = self.connection.stub::<Service>();
        let request = self.connection.request(self.core.request.clone(), &self.trace);
        let connection = Arc::clone(&self.connection);
        Box::pin(async move {
            let mut stub = stub?;
            tokio::select! {
                biased;
                () = connection.closing() => Err(Error::client_closed()),
                answer = stub.consume(request) => match answer {
                    Ok(response) => Ok(response.into_inner()),
                    Err(status) => Err(connection.failure(status)),
                },
            }
        })
    }

    fn put(&self, messages: Vec<proto::Message>) {
        if messages.is_empty() {
            return;
        }
        let frame = self.leases.frame(&self.core.request.queue, &messages, self.is_kept);
        self.core.put(frame, messages);
    }

    /// Decides what the end of a stream means: a wait before the next one, or the end of all.
    fn lost(&mut self, ending: Option<Error>) -> Result<Duration> {
        let queue = self.core.request.queue.as_str();
        // A broker that stops cancels streams; nobody here did.
        if let Some(error) = &ending
            && !error.is_unavailable()
            && error.kind() != ErrorKind::Cancelled
        {
            return Err(error.clone().about(Some(queue), None));
        }
        // A stream that lasted was a good one, even if its queue was empty all the time.
        if self.opened_at.elapsed() > self.connection.backoff.maximum {
            self.attempts = 0;
        }
        if !self.is_lost {
            self.is_lost = true;
            let why = ending.map_or_else(|| "the broker ended it".to_owned(), |e| e.to_string());
            tracing::warn!(queue, why, "consume stream was lost, reconnecting");
        }
        let pause = self.connection.backoff.delay(self.attempts, chance());
        self.attempts += 1;
        Ok(pause)
    }

    fn found(&mut self) {
        if std::mem::take(&mut self.is_lost) {
            let queue = self.core.request.queue.as_str();
            tracing::info!(queue, "consume stream is there again");
        }
    }
}

/// Takes what was sent already. The broker sends no more than its credit, so little can follow.
async fn drain(phase: Phase, unread: &mut Vec<proto::Message>) {
    let reading = async {
        let mut frames = match phase {
            Phase::Opening(opening) => match opening.await {
                Ok(frames) => frames,
                Err(_) => return,
            },
            Phase::Reading(frames) => *frames,
            Phase::Idle => return,
        };
        while let Ok(Some(frame)) = frames.message().await {
            unread.extend(frame.messages);
        }
    };
    // Whether the time or the stream ended first makes no difference.
    let _ = timeout(DRAIN_TIME, reading).await;
}

async fn release(connection: &Connection, queue: &str, unread: Vec<proto::Message>) {
    if unread.is_empty() {
        return;
    }
    let nacks = unread.into_iter().map(released);
    let given_back = send_many::<Nack>(connection, nacks, RELEASE_TIME);
    let failure = match timeout(RELEASE_TIME, given_back).await {
        Ok(Ok(outcomes)) => outcomes.into_iter().find_map(Result::err),
        Ok(Err(error)) => Some(error),
        Err(_) => Some(Error::too_late("")),
    };
    if let Some(error) = failure {
        tracing::debug!(queue, %error, "messages not given back, their leases will end");
    }
}

/// Gives back a message that nobody has seen: it is ready at once and no attempt is counted.
fn released(raw: proto::Message) -> proto::NackRequest {
    let metadata = raw.metadata.unwrap_or_default();
    proto::NackRequest {
        queue: metadata.queue_id,
        message_id: raw.id,
        lease_token: metadata.lease_token,
        retry_after_ms: Some(0),
        ..Default::default()
    }
}

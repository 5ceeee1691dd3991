// SPDX-License-Identifier: AGPL-3.0-only
//! A stream of leased messages that outlives its connection.
//!
//! ```text
//!   open --frame--> messages --> application        close, drop and Client::close end it
//!    ^                |
//!    '-- wait <-- UNAVAILABLE, or the broker ended the stream     any other error is handed out
//! ```
//!
//! A frame is read only when the application has taken all messages of the one before, so the
//! broker's credit sees how fast it really is. What was sent but never handed out goes back when
//! the consumer ends: otherwise every restart of a worker would hide those messages until their
//! leases end, and count an attempt that nobody made.
//!
//! There is no task behind a consumer: its state is polled by whoever awaits a message. The state
//! is shared with the client, so that closing the client can end a consumer that nobody polls.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tonic::Streaming;

use crate::batch::{Nack, send_many};
use crate::client::Client;
use crate::connection::{Connection, Service, chance, locked};
use crate::error::{Error, ErrorKind, Result};
use crate::message::ConsumeMessage;
use crate::proto;
use crate::tracing::Trace;

// What a handler that takes 0.1 s works off before a default lease of 30 s ends. More would also
// make a quiet tenant's message wait behind more messages that were delivered before it.
const DEFAULT_IN_FLIGHT_MAX: u32 = 256;
// A frame costs the broker some 0.3 ms whatever it holds; a hundred messages share that.
const DEFAULT_BATCH_SIZE: u32 = 100;
// Giving messages back is a courtesy: their leases end anyway, so it may not hold up a shutdown.
// First come the frames that are about to arrive, then the request that gives all of them back.
const DRAIN_TIME: Duration = Duration::from_millis(50);
const RELEASE_TIME: Duration = Duration::from_secs(1);

/// How messages of a queue are delivered to a [`Consumer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumeOptions {
    /// The most messages leased to the consumer at a time, 256 unless set.
    pub max_in_flight: u32,
    /// The most messages that arrive together, 100 unless set.
    pub batch_size: u32,
    /// How long each lease lasts; `None` takes the queue's visibility timeout.
    pub visibility_timeout: Option<Duration>,
}

impl Default for ConsumeOptions {
    fn default() -> Self {
        Self {
            max_in_flight: DEFAULT_IN_FLIGHT_MAX,
            batch_size: DEFAULT_BATCH_SIZE,
            visibility_timeout: None,
        }
    }
}

/// The messages of a queue as the broker leases them: a [`Stream`], or [`next`](Self::next) by
/// [`next`](Self::next).
///
/// When the connection is lost the stream goes on with a new one. It hands out an error, and then
/// ends, where trying again would not help: an unknown queue, a key without permission. Dropping it
/// gives back in the background what was not handed out; [`close`](Self::close) waits for that.
pub struct Consumer {
    core: Arc<Core>,
    client: Client,
}

impl Consumer {
    pub(crate) fn new(core: Arc<Core>, client: Client) -> Self {
        Self { core, client }
    }

    /// The next message; `None` after an error or once the client was closed. Dropping the future
    /// loses no message.
    pub async fn next(&mut self) -> Option<Result<ConsumeMessage>> {
        poll_fn(|context| self.poll_message(context)).await
    }

    /// Ends the stream and gives back what was not handed out, within about a second.
    pub async fn close(self) {
        Arc::clone(&self.core).close().await;
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<ConsumeMessage>>> {
        let message = ready!(self.core.poll_message(context));
        Poll::Ready(message.map(|found| {
            let (raw, frame_size) = found?;
            Ok(ConsumeMessage::new(raw, self.client.clone(), frame_size))
        }))
    }
}

impl Stream for Consumer {
    type Item = Result<ConsumeMessage>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(context)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if self.core.is_open() {
            let connection = &self.core.connection;
            connection.spawn_courtesy(Arc::clone(&self.core).close());
        }
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Consumer")
            .field("queue", &self.core.request.queue)
            .field("is_open", &self.core.is_open())
            .finish_non_exhaustive()
    }
}

type Frames = Streaming<proto::ConsumeResponse>;
type Opening = Pin<Box<dyn Future<Output = Result<Frames>> + Send>>;

enum Phase {
    Idle,
    // The broker answers with its first frame, so this lasts for as long as the queue is empty.
    Opening(Opening),
    Reading(Box<Frames>),
    Waiting(Pin<Box<Sleep>>),
    Ended,
}

struct State {
    phase: Phase,
    /// Received and not handed out.
    unread: VecDeque<proto::Message>,
    /// Of the frame that is being handed out.
    frame_size: u64,
    opened_at: Instant,
    attempts: u32,
    waker: Option<Waker>,
}

/// What a consumer shares with its client.
pub(crate) struct Core {
    connection: Arc<Connection>,
    request: proto::ConsumeRequest,
    state: Mutex<State>,
}

impl Core {
    pub(crate) fn new(connection: Arc<Connection>, request: proto::ConsumeRequest) -> Arc<Self> {
        let state = State {
            phase: Phase::Idle,
            unread: VecDeque::new(),
            frame_size: 0,
            opened_at: Instant::now(),
            attempts: 0,
            waker: None,
        };
        Arc::new(Self { connection, request, state: Mutex::new(state) })
    }

    fn is_open(&self) -> bool {
        !matches!(locked(&self.state).phase, Phase::Ended)
    }

    /// The next message, and how many came in its frame.
    fn poll_message(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(proto::Message, u64)>>> {
        let mut state = locked(&self.state);
        loop {
            if let Some(message) = state.unread.pop_front() {
                return Poll::Ready(Some(Ok((message, state.frame_size))));
            }
            let ending = match &mut state.phase {
                Phase::Ended => return Poll::Ready(None),
                Phase::Idle => {
                    state.opened_at = Instant::now();
                    state.phase = Phase::Opening(self.open());
                    continue;
                }
                Phase::Opening(opening) => match opening.as_mut().poll(context) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(frames)) => {
                        state.phase = Phase::Reading(Box::new(frames));
                        continue;
                    }
                    Poll::Ready(Err(error)) => Some(error),
                },
                Phase::Reading(frames) => match Pin::new(frames).poll_next(context) {
                    Poll::Pending => break,
                    Poll::Ready(Some(Ok(frame))) => {
                        state.attempts = 0;
                        state.frame_size = frame.messages.len() as u64;
                        state.unread.extend(frame.messages);
                        continue;
                    }
                    Poll::Ready(Some(Err(status))) => Some(self.connection.failure(status)),
                    Poll::Ready(None) => None,
                },
                Phase::Waiting(pause) => match pause.as_mut().poll(context) {
                    Poll::Pending => break,
                    Poll::Ready(()) => {
                        state.phase = Phase::Idle;
                        continue;
                    }
                },
            };
            if let Err(last) = self.reconnect(&mut state, ending) {
                state.phase = Phase::Ended;
                let is_closed = last.kind() == ErrorKind::ClientClosed;
                return Poll::Ready((!is_closed).then_some(Err(last)));
            }
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn open(&self) -> Opening {
        let stub = self.connection.stub::<Service>();
        let request = self.connection.request(self.request.clone(), &Trace::current());
        let connection = Arc::clone(&self.connection);
        Box::pin(async move {
            let response = stub?.consume(request).await;
            response.map(tonic::Response::into_inner).map_err(|status| connection.failure(status))
        })
    }

    /// Decides what the end of a stream means: a wait before the next one, or the end of all.
    fn reconnect(&self, state: &mut State, ending: Option<Error>) -> Result<()> {
        let queue = self.request.queue.as_str();
        // A broker that stops cancels streams; nobody here did.
        if let Some(error) = &ending
            && !error.is_unavailable()
            && error.kind() != ErrorKind::Cancelled
        {
            return Err(error.clone().about(Some(queue), None));
        }
        // A stream that lasted was a good one, even if its queue was empty all the time.
        if state.opened_at.elapsed() > self.connection.backoff.maximum {
            state.attempts = 0;
        }
        if state.attempts == 0 {
            let why = ending.map_or_else(|| "the broker ended it".to_owned(), |e| e.to_string());
            tracing::warn!(queue, why, "consume stream was lost, reconnecting");
        }
        let pause = self.connection.backoff.delay(state.attempts, chance());
        state.attempts += 1;
        state.phase = Phase::Waiting(Box::pin(sleep(pause)));
        Ok(())
    }

    /// Ends the stream, wakes who waits for it, and gives back what was not handed out.
    pub(crate) async fn close(self: Arc<Self>) {
        let (phase, mut unread, waker) = {
            let mut state = locked(&self.state);
            let phase = std::mem::replace(&mut state.phase, Phase::Ended);
            (phase, std::mem::take(&mut state.unread), state.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        drain(phase, &mut unread).await;
        self.release(unread).await;
    }

    async fn release(&self, unread: VecDeque<proto::Message>) {
        if unread.is_empty() {
            return;
        }
        let nacks = unread.into_iter().map(released);
        let given_back = send_many::<Nack>(&self.connection, nacks, RELEASE_TIME);
        let failure = match timeout(RELEASE_TIME, given_back).await {
            Ok(Ok(outcomes)) => outcomes.into_iter().find_map(Result::err),
            Ok(Err(error)) => Some(error),
            Err(_) => Some(Error::too_late("")),
        };
        if let Some(error) = failure {
            let queue = self.request.queue.as_str();
            tracing::debug!(queue, %error, "messages not given back, their leases will end");
        }
    }
}

/// Takes what was sent already. The broker sends no more than its credit, so little can follow.
async fn drain(phase: Phase, unread: &mut VecDeque<proto::Message>) {
    let reading = async {
        let mut frames = match phase {
            Phase::Opening(opening) => match opening.await {
                Ok(frames) => frames,
                Err(_) => return,
            },
            Phase::Reading(frames) => *frames,
            Phase::Idle | Phase::Waiting(_) | Phase::Ended => return,
        };
        while let Ok(Some(frame)) = frames.message().await {
            unread.extend(frame.messages);
        }
    };
    // Whether the time or the stream ended first makes no difference.
    let _ = timeout(DRAIN_TIME, reading).await;
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

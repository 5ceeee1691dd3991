// SPDX-License-Identifier: AGPL-3.0-only
//! Batch calls over long-lived streams, which cost a part of what calls of their own would.
//!
//! A client has two pipelines, one for enqueues and one for settlements, so that neither waits for
//! the other. A pipeline is a stream, opened with the first batch and again with the first one
//! after it broke. Answers come in the order of the requests:
//!
//! ```text
//! caller -> queue -> transport -> broker -> task -> the oldest of pending -> its caller
//! ```
//!
//! A caller keeps its own deadline: it leaves, and its answer is dropped when it comes. A stream
//! that breaks fails what the transport took, which may have been done; what it did not take goes
//! to the next stream. Where answers stop coming, callers go to another stream, and the stuck one
//! ends with its last caller.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::Stream;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::{Code, Request, Status};

use crate::api_key::Key;
use crate::batch::{self, Answers, BATCH_BYTES_MAX, Batch};
use crate::connection::{Connection, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, Service, locked};
use crate::error::{Error, Result};
use crate::grants;
use crate::proto;
use crate::proto::pipeline_request::Call;
use crate::proto::pipeline_response::Answer;
use crate::tracing::Trace;

// More than the coalescers have under way, so this bounds callers that bring their own batches.
const REQUESTS_MAX: usize = 16;
// Tag and length of a batch inside a request of a pipeline.
const OVERHEAD_BYTES: usize = 16;
// A connection that is this silent is taken for dead; so is a stream.
const STALL_TIME: Duration = KEEPALIVE_INTERVAL.saturating_add(KEEPALIVE_TIMEOUT);
// What was sent is answered meanwhile, and the broker sees a stream that ended well.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// A batch call that a pipeline carries.
pub(crate) trait Piped: Batch {
    fn pipeline(connection: &Connection) -> &Pipeline;
    fn into_call(request: Self::Request) -> Call;
    /// None if it is another call.
    fn from_call(call: Call) -> Option<Self::Request>;
    /// None if it answers another call.
    fn from_answer(answer: Answer) -> Option<Self::Response>;
    /// Whether it answers this call, if only with an error.
    fn is_own(answer: &Answer) -> bool;
}

macro_rules! piped {
    ($($batch:ty: $variant:ident through $pipeline:ident,)*) => {
        $(impl Piped for $batch {
            fn pipeline(connection: &Connection) -> &Pipeline {
                &connection.$pipeline
            }

            fn into_call(request: Self::Request) -> Call {
                Call::$variant(request)
            }

            fn from_call(call: Call) -> Option<Self::Request> {
                if let Call::$variant(request) = call { Some(request) } else { None }
            }

            fn from_answer(answer: Answer) -> Option<Self::Response> {
                if let Answer::$variant(response) = answer { Some(response) } else { None }
            }

            fn is_own(answer: &Answer) -> bool {
                matches!(answer, Answer::$variant(_) | Answer::Error(_))
            }
        })*
    };
}

piped! {
    batch::Enqueue: Enqueue through enqueues,
    grants::Ack: Ack through settlements,
    batch::Nack: Nack through settlements,
    batch::Extend: Extend through settlements,
    grants::Settle: Settle through settlements,
}

/// Sends a batch through its pipeline, or as a call of its own: where the broker knows no
/// pipelines, for a trace, which is metadata and so the call's, and for what is so large that
/// others should not wait behind it, nor a limit on its size end their stream.
pub(crate) async fn carry<B: Piped>(
    connection: &Connection,
    request: B::Request,
    deadline: Instant,
    trace: &Trace,
) -> Result<Answers<B::Output>> {
    let bytes = request.encoded_len() + OVERHEAD_BYTES;
    let is_large = bytes > connection.max_message_bytes.min(BATCH_BYTES_MAX);
    if is_large || !trace.is_empty() || !connection.has_pipelines() {
        return alone::<B>(connection, request, deadline, trace).await;
    }
    let pipeline = B::pipeline(connection);
    let mut outcome = pipeline.pass(connection, B::into_call(request), B::is_own, deadline).await?;
    if let Outcome::Unsent(_, call) = outcome {
        outcome = pipeline.pass(connection, call, B::is_own, deadline).await?;
    }
    match outcome {
        Outcome::Answer(Answer::Error(item)) => {
            Err(Error::from_item(&item, &connection.redacted(&item.message)))
        }
        Outcome::Answer(answer) => B::from_answer(answer).map(B::read).ok_or_else(foreign),
        Outcome::Lost(status) | Outcome::Unsent(status, _) => Err(connection.failure(status)),
        Outcome::Unknown(call) => {
            connection.forget_pipelines();
            let request = B::from_call(call).ok_or_else(foreign)?;
            alone::<B>(connection, request, deadline, trace).await
        }
    }
}

async fn alone<B: Batch>(
    connection: &Connection,
    request: B::Request,
    deadline: Instant,
    trace: &Trace,
) -> Result<Answers<B::Output>> {
    connection.attempt(request, deadline, trace, B::send).await.map(B::read)
}

fn foreign() -> Error {
    Error::internal(FOREIGN)
}

const FOREIGN: &str = "the broker answered what nobody asked";

/// What became of a request.
enum Outcome {
    Answer(Answer),
    /// The stream broke; whether the request was done is not known.
    Lost(Status),
    /// The stream broke before the request was sent.
    Unsent(Status, Call),
    /// The broker knows no pipelines, and has done nothing.
    Unknown(Call),
}

/// Where batch calls of one kind go.
pub(crate) struct Pipeline {
    // The stream that takes requests, unless it is over, and what runs it.
    open: Mutex<Option<(Arc<Pipe>, JoinHandle<()>)>>,
    stall_time: Duration,
}

impl Default for Pipeline {
    fn default() -> Self {
        Self { open: Mutex::default(), stall_time: STALL_TIME }
    }
}

impl Pipeline {
    /// Sends a request through the stream that is open now. Fails when the deadline passes or the
    /// client is closed before an answer comes.
    async fn pass(
        &self,
        connection: &Connection,
        call: Call,
        is_own: fn(&Answer) -> bool,
        deadline: Instant,
    ) -> Result<Outcome> {
        connection.check_alive()?;
        if deadline <= Instant::now() {
            return Err(Error::too_late("the deadline passed before the request was sent"));
        }
        let pipe = self.current(connection)?;
        tokio::select! {
            biased;
            () = connection.closing() => Err(Error::client_closed()),
            outcome = timeout_at(deadline, pipe.pass(call, is_own)) => outcome.map_err(|_| {
                self.leave_if_stalled(&pipe);
                Error::too_late("")
            }),
        }
    }

    /// The stream to use, opened if need be. One that was opened with another API key gets no more
    /// requests, and ends when those that it has are answered. Fails when the client is closed, and
    /// as the function does that gives the key.
    fn current(&self, connection: &Connection) -> Result<Arc<Pipe>> {
        let key = connection.key()?;
        let mut open = locked(&self.open);
        if let Some((pipe, _)) = &*open
            && pipe.key == key
            && !locked(&pipe.shared).is_over
        {
            return Ok(Arc::clone(pipe));
        }
        let service = connection.stub()?;
        let shared = Arc::new(Mutex::new(State::new()));
        let (handle, is_dropped) = oneshot::channel();
        let outgoing = Outgoing(Arc::clone(&shared));
        let requests = Connection::request(outgoing, key.as_deref(), &Trace::default());
        let run = Run(Arc::clone(&shared)).run(service, requests, is_dropped);
        let pipe = Arc::new(Pipe {
            shared,
            slots: Arc::new(Semaphore::new(REQUESTS_MAX)),
            key,
            _handle: handle,
        });
        let task = connection.runtime.spawn(run);
        *open = Some((Arc::clone(&pipe), task));
        Ok(pipe)
    }

    /// Gives the stream up for new requests if its answers have stopped.
    fn leave_if_stalled(&self, stuck: &Arc<Pipe>) {
        let mut open = locked(&self.open);
        let is_open = open.as_ref().is_some_and(|(pipe, _)| Arc::ptr_eq(pipe, stuck));
        if is_open && locked(&stuck.shared).moved_at.elapsed() > self.stall_time {
            stuck.slots.close();
            *open = None;
        }
    }

    /// Half-closes the stream and waits, not for long, until it has ended well.
    pub(crate) async fn close(&self) {
        let open = locked(&self.open).take();
        if let Some((pipe, mut task)) = open {
            pipe.end();
            drop(pipe);
            if timeout(DRAIN_TIME, &mut task).await.is_err() {
                task.abort();
            }
        }
    }
}

/// One stream. It ends when nobody has it any more.
struct Pipe {
    shared: Arc<Mutex<State>>,
    slots: Arc<Semaphore>,
    // What it was opened with.
    key: Option<Arc<Key>>,
    // Its loss tells the task that nobody is left.
    _handle: oneshot::Sender<()>,
}

impl Pipe {
    async fn pass(&self, call: Call, is_own: fn(&Answer) -> bool) -> Outcome {
        let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else {
            return Outcome::Unsent(Status::unavailable(LOST), call);
        };
        let (answer, outcome) = oneshot::channel();
        {
            let mut state = locked(&self.shared);
            if state.is_over {
                return Outcome::Unsent(Status::unavailable(LOST), call);
            }
            if state.queue.is_empty() && state.pending.is_empty() {
                state.moved_at = Instant::now();
            }
            state.queue.push_back((call, Waiting { answer, is_own, copy: None, _slot: slot }));
            state.wake();
        }
        outcome.await.unwrap_or_else(|_| Outcome::Lost(Status::cancelled(ENDED)))
    }

    /// Lets no more requests through.
    fn end(&self) {
        let mut state = locked(&self.shared);
        state.is_ending = true;
        state.wake();
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.end();
    }
}

const LOST: &str = "the stream was lost before the request was sent";
const ENDED: &str = "the runtime ended; the outcome is unknown";

/// One caller that waits for its answer.
struct Waiting {
    answer: oneshot::Sender<Outcome>,
    is_own: fn(&Answer) -> bool,
    // The request, for as long as the broker may turn out to know no pipelines.
    copy: Option<Call>,
    _slot: OwnedSemaphorePermit,
}

struct State {
    // What the transport has not taken yet, and what it has: oldest first.
    queue: VecDeque<(Call, Waiting)>,
    pending: VecDeque<Waiting>,
    // When an answer came last, or when there began to be one to wait for.
    moved_at: Instant,
    transport: Option<Waker>,
    has_answered: bool,
    is_ending: bool,
    is_over: bool,
}

impl State {
    fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            pending: VecDeque::new(),
            moved_at: Instant::now(),
            transport: None,
            has_answered: false,
            is_ending: false,
            is_over: false,
        }
    }

    fn wake(&mut self) {
        if let Some(transport) = self.transport.take() {
            transport.wake();
        }
    }

    /// Gives an answer to the oldest request. False when it is not one to that.
    fn answered(&mut self, response: proto::PipelineResponse) -> bool {
        let Some(answer) = response.answer else { return false };
        if !self.pending.front().is_some_and(|oldest| (oldest.is_own)(&answer)) {
            return false;
        }
        let Some(oldest) = self.pending.pop_front() else { return false };
        self.moved_at = Instant::now();
        self.has_answered = true;
        // A caller that has left by now does not want it.
        let _ = oldest.answer.send(Outcome::Answer(answer));
        true
    }

    /// Tells everybody that the stream is over, and why. What was not sent may go elsewhere, but
    /// not if nothing was ever answered here: then the end was about everybody.
    fn finish(&mut self, status: &Status) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        let is_unknown = status.code() == Code::Unimplemented && !self.has_answered;
        for waiting in self.pending.drain(..) {
            let outcome = match waiting.copy {
                Some(call) if is_unknown => Outcome::Unknown(call),
                _ => Outcome::Lost(status.clone()),
            };
            let _ = waiting.answer.send(outcome);
        }
        for (call, waiting) in self.queue.drain(..) {
            let outcome = match self.has_answered {
                _ if is_unknown => Outcome::Unknown(call),
                true => Outcome::Unsent(status.clone(), call),
                false => Outcome::Lost(status.clone()),
            };
            let _ = waiting.answer.send(outcome);
        }
        // It has nothing more to take.
        self.wake();
    }
}

/// The requests, as the transport takes them.
struct Outgoing(Arc<Mutex<State>>);

impl Stream for Outgoing {
    type Item = proto::PipelineRequest;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = locked(&self.0);
        while let Some((call, mut waiting)) = state.queue.pop_front() {
            // What its caller has given up must not be sent any more.
            if waiting.answer.is_closed() {
                continue;
            }
            waiting.copy = (!state.has_answered).then(|| call.clone());
            state.pending.push_back(waiting);
            return Poll::Ready(Some(proto::PipelineRequest { call: Some(call) }));
        }
        if state.is_ending || state.is_over {
            return Poll::Ready(None);
        }
        state.transport = Some(context.waker().clone());
        Poll::Pending
    }
}

/// What runs a stream. However it ends, nobody waits for it any longer.
struct Run(Arc<Mutex<State>>);

impl Run {
    async fn run(
        self,
        service: Service,
        requests: Request<Outgoing>,
        is_dropped: oneshot::Receiver<()>,
    ) {
        let forgotten = async {
            let _ = is_dropped.await;
            tokio::time::sleep(DRAIN_TIME).await;
        };
        let status = tokio::select! {
            status = self.read(service, requests) => status,
            () = forgotten => Status::cancelled("nobody waits for it any more"),
        };
        locked(&self.0).finish(&status);
    }

    /// Gives answers to those who wait for them, until the stream is over; says why it is.
    async fn read(&self, mut service: Service, requests: Request<Outgoing>) -> Status {
        let mut answers = match service.pipeline(requests).await {
            Ok(response) => response.into_inner(),
            Err(status) => return status,
        };
        drop(service);
        loop {
            match answers.message().await {
                Ok(Some(answer)) => {
                    if !locked(&self.0).answered(answer) {
                        return Status::internal(FOREIGN);
                    }
                }
                Ok(None) => return Status::unavailable("the broker ended the stream"),
                Err(status) => return status,
            }
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        locked(&self.0).finish(&Status::cancelled(ENDED));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;

    #[tokio::test]
    async fn a_stream_whose_answers_do_not_come_is_left_behind() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = nobody.local_addr().unwrap().to_string();
        let client = Client::builder().target(target).connect_lazy().unwrap();
        let connection = client.connection();
        let call = || Call::Ack(proto::AckBatchRequest::default());
        let soon = || Instant::now() + Duration::from_millis(50);
        for (stall_time, is_left) in [(STALL_TIME, false), (Duration::ZERO, true)] {
            let pipeline = Pipeline { stall_time, ..Pipeline::default() };
            let passed = pipeline.pass(connection, call(), grants::Ack::is_own, soon()).await;
            assert_eq!(passed.err().unwrap().code(), Some("DEADLINE_EXCEEDED"));
            assert_eq!(locked(&pipeline.open).is_none(), is_left);
        }
    }
}

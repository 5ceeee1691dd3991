// SPDX-License-Identifier: AGPL-3.0-only
//! A worker: a consumer, a number of handlers, and a rule for each outcome. It decides no retries
//! and keeps no state; that is the queue's.
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

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::Client;
use crate::connection::{TIMEOUT_MAX, chain, deadline_after};
use crate::consumer::{ConsumeOptions, Consumer, Held};
use crate::error::{Error, Result};
use crate::message::{ConsumeMessage, Message, Nack};
use crate::tracing::handling;

const DEFAULT_CONCURRENCY: u32 = 10;
// While a handler works, the next message is on its way.
const PREFETCH_FACTOR: u32 = 2;
// Between a stop and the moment at which most supervisors kill: 30 s.
const DEFAULT_GRACE: Duration = Duration::from_secs(20);
// The broker keeps no more of it.
const ERROR_BYTES_MAX: usize = 4096;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Handling = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;
type OnEvent = Box<dyn Fn(&WorkerEvent<'_>) + Send + Sync>;

/// What a handler returns if it did not succeed. `?` makes [`Failed`](Self::Failed) of any error,
/// and of a text.
#[derive(Debug)]
pub enum HandlerError {
    /// Not now: the message comes back after `retry_after`, and no attempt is counted.
    Backpressure {
        /// How long it has to wait.
        retry_after: Duration,
        /// Until then this throttle key lets nothing through, for anybody.
        throttle_key: Option<String>,
        /// For people.
        reason: Option<String>,
    },
    /// Trying again would not help: the message becomes a dead letter at once.
    DeadLetter {
        /// What is wrong with it.
        reason: String,
    },
    /// The message is retried or dead-lettered, as its queue has it.
    Failed(BoxError),
}

impl HandlerError {
    /// [`Backpressure`](Self::Backpressure) without a throttle key.
    #[must_use]
    pub fn backpressure(retry_after: Duration) -> Self {
        Self::Backpressure { retry_after, throttle_key: None, reason: None }
    }

    /// [`DeadLetter`](Self::DeadLetter), for this reason.
    pub fn dead_letter(reason: impl Into<String>) -> Self {
        Self::DeadLetter { reason: reason.into() }
    }
}

// Not an error itself: otherwise it could not be made of every other one.
impl<E: Into<BoxError>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backpressure { reason: Some(reason), .. } | Self::DeadLetter { reason } => {
                out.write_str(reason)
            }
            Self::Backpressure { retry_after, .. } => write!(out, "put off for {retry_after:?}"),
            Self::Failed(error) => out.write_str(&chain(&**error)),
        }
    }
}

/// What became of a message; [`WorkerEvent::kind`] says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// It was handled.
    Acked,
    /// Its handler failed.
    Nacked,
    /// Its handler asked for [`DeadLetter`](HandlerError::DeadLetter).
    DeadLettered,
    /// Its handler asked for [`Backpressure`](HandlerError::Backpressure).
    PutOff,
    /// Its handler was cut off by the end of the worker's grace.
    GivenBack,
    /// Its handler took longer than it may. [`Nacked`](Self::Nacked) follows.
    TimedOut,
    /// The broker could not be told about it: it comes back when its lease ends.
    SettleFailed,
}

impl EventKind {
    /// The kind in words that stay the same in every SDK, `dead_lettered` for example.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acked => "acked",
            Self::Nacked => "nacked",
            Self::DeadLettered => "dead_lettered",
            Self::PutOff => "put_off",
            Self::GivenBack => "given_back",
            Self::TimedOut => "timed_out",
            Self::SettleFailed => "settle_failed",
        }
    }
}

/// Something that happened to a message in a [`Worker`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WorkerEvent<'a> {
    /// What it was.
    pub kind: EventKind,
    /// The message; a batch has one event for each of its messages.
    pub message: &'a Message,
    /// How long it was handled.
    pub took: Duration,
    /// What the handler said, or the broker; none where all went well.
    pub error: Option<&'a str>,
}

/// Ends a [`Worker`] from elsewhere. Clones end the same one.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<watch::Sender<Wish>>);

#[derive(Clone, Copy, Debug)]
enum Wish {
    Run,
    Stop,
    StopWithin(Duration),
}

impl StopHandle {
    /// The worker takes no more messages, gives back what no handler has seen, and ends when its
    /// handlers are done, or their grace is. Returns at once; harmless twice, and before `run`.
    pub fn stop(&self) {
        self.0.send_if_modified(|wish| {
            let is_first = matches!(wish, Wish::Run);
            if is_first {
                *wish = Wish::Stop;
            }
            is_first
        });
    }

    /// [`stop`](Self::stop) with another grace, counted from now. Zero cuts handlers off at once.
    pub fn stop_within(&self, grace: Duration) {
        self.0.send_replace(Wish::StopWithin(grace));
    }
}

enum Handler {
    One(Box<dyn Fn(ConsumeMessage) -> Handling + Send + Sync>),
    Many(usize, Box<dyn Fn(Vec<ConsumeMessage>) -> Handling + Send + Sync>),
}

impl Handler {
    fn batch_size(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(size, _) => *size,
        }
    }

    fn call(&self, load: &[Held]) -> Handling {
        let mut messages = load.iter().map(|(message, _)| message.clone());
        match (self, messages.next()) {
            (Self::One(handler), Some(message)) => handler(message),
            (Self::Many(_, handler), first) => handler(first.into_iter().chain(messages).collect()),
            (Self::One(_), None) => Box::pin(async { Ok(()) }),
        }
    }
}

/// Handles the messages of a queue until it is stopped.
///
/// A handler that returns `Ok` acks its message; one that fails nacks it, and [`HandlerError`] says
/// how. A panic is a failure of that message and of nothing else. Leases are extended while
/// handlers run. A handler is cancelled by dropping its future, so it must not block: use
/// `spawn_blocking`.
///
/// ```no_run
/// # async fn handle(_: &fila::Message) -> std::io::Result<()> { Ok(()) }
/// # async fn run(client: fila::Client) -> fila::Result<()> {
/// use fila::ConsumeMessage;
///
/// let worker = client.worker("orders", |message: ConsumeMessage| async move {
///     handle(&message).await?;
///     Ok(())
/// });
/// worker.concurrency(20).run_until(std::future::pending::<()>()).await
/// # }
/// ```
#[must_use = "a worker does nothing until it runs"]
pub struct Worker {
    client: Client,
    queue: String,
    handler: Handler,
    concurrency: u32,
    prefetch: Option<u32>,
    visibility_timeout: Option<Duration>,
    handler_timeout: Option<Duration>,
    grace: Duration,
    on_event: Option<OnEvent>,
    stop: StopHandle,
}

impl Client {
    /// A worker that calls `handler` with one message at a time, 10 times side by side unless told
    /// otherwise. It begins with [`Worker::run`].
    pub fn worker<H, F>(&self, queue: impl Into<String>, handler: H) -> Worker
    where
        H: Fn(ConsumeMessage) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let handler = Box::new(move |message| -> Handling { Box::pin(handler(message)) });
        Worker::new(self.clone(), queue.into(), Handler::One(handler))
    }

    /// A worker that calls `handler` with up to `batch_size` messages, of what is there: it waits
    /// for one, and for no more. What the handler returns is the outcome of all of them that it did
    /// not settle itself.
    pub fn batch_worker<H, F>(
        &self,
        queue: impl Into<String>,
        batch_size: usize,
        handler: H,
    ) -> Worker
    where
        H: Fn(Vec<ConsumeMessage>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let handler = Box::new(move |messages| -> Handling { Box::pin(handler(messages)) });
        Worker::new(self.clone(), queue.into(), Handler::Many(batch_size, handler))
    }
}

impl Worker {
    fn new(client: Client, queue: String, handler: Handler) -> Self {
        Self {
            client,
            queue,
            handler,
            concurrency: DEFAULT_CONCURRENCY,
            prefetch: None,
            visibility_timeout: None,
            handler_timeout: None,
            grace: DEFAULT_GRACE,
            on_event: None,
            stop: StopHandle(Arc::new(watch::Sender::new(Wish::Run))),
        }
    }

    /// How many handlers run at a time, 10 unless set.
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// The most messages leased at a time; twice what all handlers hold unless set, and never less
    /// than once that.
    pub fn prefetch(mut self, prefetch: u32) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// How long each lease lasts, by default the queue's visibility timeout. Leases are extended
    /// while handlers run, so this is how soon the messages of a worker that crashed come back.
    pub fn visibility_timeout(mut self, visibility_timeout: Duration) -> Self {
        self.visibility_timeout = Some(visibility_timeout);
        self
    }

    /// After this a handler has failed, and is cancelled; it may take for ever unless set.
    pub fn handler_timeout(mut self, handler_timeout: Duration) -> Self {
        self.handler_timeout = Some(handler_timeout);
        self
    }

    /// What handlers get to finish after a stop, 20 s unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Called with what becomes of each message, for metrics and logs. A panic in it is logged and
    /// changes nothing.
    pub fn on_event(mut self, on_event: impl Fn(&WorkerEvent<'_>) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Box::new(on_event));
        self
    }

    /// What stops this worker from elsewhere.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Handles messages until a [`StopHandle`] ends that, or the client is closed.
    ///
    /// Fails with what trying again would not cure, an unknown queue for example, when its handlers
    /// are done. A broker that is away is no error: the worker waits for it. Dropping the future
    /// cuts handlers off and gives their messages back in the background.
    pub async fn run(self) -> Result<()> {
        self.run_until(std::future::pending::<()>()).await
    }

    /// [`run`](Self::run), and stop when `end` is ready: a signal, or a token that is cancelled.
    pub async fn run_until<T>(self, end: impl Future<Output = T>) -> Result<()> {
        let batch_size = u32::try_from(self.handler.batch_size()).unwrap_or(u32::MAX);
        if self.concurrency == 0 || batch_size == 0 {
            let text = "concurrency and batch_size of a worker must be positive, got 0";
            return Err(Error::invalid(text));
        }
        let handled = self.concurrency.saturating_mul(batch_size);
        let prefetch = self.prefetch.unwrap_or(handled.saturating_mul(PREFETCH_FACTOR));
        let prefetch = prefetch.max(handled);
        let options = ConsumeOptions {
            max_in_flight: prefetch,
            visibility_timeout: self.visibility_timeout,
            ..ConsumeOptions::default()
        };
        let consumer = self.client.consume_with(&self.queue, options).await?;
        let mut stop = self.stop.0.subscribe();
        let run = Run(Arc::new(Shared {
            slots: Arc::new(Semaphore::new(self.concurrency as usize)),
            settlements: Arc::new(Semaphore::new(prefetch as usize)),
            prefetch,
            cut: watch::Sender::new(false),
            worker: self,
        }));
        let mut end = pin!(async {
            let stopped = async {
                // The sender is the worker's own, so this cannot fail.
                let _ = stop.wait_for(|wish| !matches!(wish, Wish::Run)).await;
            };
            tokio::select! {
                _ = end => {}
                () = stopped => {}
            }
        });
        let (outcome, has_stopped) = tokio::select! {
            biased;
            () = &mut end => (Ok(()), true),
            outcome = run.feed(&consumer) => (outcome, false),
        };
        if !has_stopped {
            // The consumer's end, not the user's: handlers have all the time that they need.
            tokio::select! {
                biased;
                () = &mut end => {}
                () = run.idle() => {}
            }
        }
        let stopped_at = Instant::now();
        tokio::join!(consumer.close(), run.finish(stopped_at));
        outcome
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Worker")
            .field("queue", &self.queue)
            .field("concurrency", &self.concurrency)
            .field("batch_size", &self.handler.batch_size())
            .finish_non_exhaustive()
    }
}

/// A worker while it runs. Its loss cuts off what still runs.
struct Run(Arc<Shared>);

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

/// How a handling ended.
enum Outcome {
    Done,
    Error(HandlerError),
    Panicked(String),
    TimedOut(Duration),
    Cut,
}

impl Run {
    /// Hands messages to handlers for as long as there are any. Dropping the future loses none.
    async fn feed(&self, consumer: &Consumer) -> Result<()> {
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

    async fn idle(&self) {
        // They are never closed, so this cannot fail.
        let _ = self.0.slots.acquire_many(self.0.worker.concurrency).await;
    }

    /// Waits until all is settled; cuts handlers off when their grace ends.
    async fn finish(&self, stopped_at: Instant) {
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
        handling(messages, handled).await.err().unwrap_or(Outcome::Done)
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

impl Outcome {
    /// What it means for a message: an ack, or this nack.
    fn rule(self, error: String) -> (EventKind, Option<Nack>) {
        let failed = Nack { error, ..Nack::default() };
        match self {
            Self::Done => (EventKind::Acked, None),
            Self::Error(HandlerError::Backpressure { retry_after, throttle_key, .. }) => {
                let nack = Nack { retry_after: Some(retry_after), throttle_key, ..failed };
                (EventKind::PutOff, Some(nack))
            }
            Self::Error(HandlerError::DeadLetter { .. }) => {
                (EventKind::DeadLettered, Some(Nack { dead_letter: true, ..failed }))
            }
            Self::Error(HandlerError::Failed(_)) | Self::Panicked(_) | Self::TimedOut(_) => {
                (EventKind::Nacked, Some(failed))
            }
            Self::Cut => {
                let nack = Nack { retry_after: Some(Duration::ZERO), ..Nack::default() };
                (EventKind::GivenBack, Some(nack))
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => out.write_str("done"),
            Self::Error(error) => error.fmt(out),
            Self::Panicked(text) => write!(out, "handler panicked: {text}"),
            Self::TimedOut(limit) => {
                write!(out, "handler timed out after {} s", limit.as_secs_f64())
            }
            Self::Cut => out.write_str("the worker was stopped"),
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
    text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
    text
}

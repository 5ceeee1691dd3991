// SPDX-License-Identifier: AGPL-3.0-only
//! A worker: a consumer, a number of handlers, and a rule for each outcome. It decides no retries
//! and keeps no state; that is the queue's.
//!
//! Here is what a user sets, and what stops it; `run` is a worker while it runs, `outcome` what
//! becomes of messages.

mod outcome;
mod run;

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

pub use self::outcome::{EventKind, HandlerError, WorkerEvent};
use self::run::Run;
use crate::client::Client;
use crate::consumer::{ConsumeOptions, Held};
use crate::error::{Error, Result};
use crate::message::ConsumeMessage;

const DEFAULT_CONCURRENCY: u32 = 10;
// While a handler works, the next message is on its way.
const PREFETCH_FACTOR: u32 = 2;
// Between a stop and the moment at which most supervisors kill: 30 s.
const DEFAULT_GRACE: Duration = Duration::from_secs(20);

type Handling = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;
type OnEvent = Box<dyn Fn(&WorkerEvent<'_>) + Send + Sync>;

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
        let run = Run::new(self, prefetch);
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

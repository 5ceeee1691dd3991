// SPDX-License-Identifier: AGPL-3.0-only
//! One gRPC channel: how it is set up, what every call carries, and what its failures mean.
//!
//! The channel connects when a client is made, or with its first call if that is what the user
//! wants, and again with the first call after it was lost.
//! Nothing here knows which calls exist or what they are for; a call comes as a function of its
//! stub.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, TimeoutExpired};

use crate::address::Address;
use crate::api_key::{Key, Keys};
use crate::connector::Connector;
use crate::error::{Error, Result};
use crate::link::Watch;
use crate::options::{Backoff, ClientBuilder};
use crate::pipeline::Pipeline;
use crate::promises::Promises;
use crate::proto::fila_admin_client::FilaAdminClient;
use crate::proto::fila_service_client::FilaServiceClient;
use crate::tls::Tls;
use crate::tracing::Trace;
use crate::transport::Transport;

pub(crate) type Service = FilaServiceClient<Transport>;
pub(crate) type Admin = FilaAdminClient<Transport>;

// Below the 60 s after which NAT tables and load balancers forget idle connections, and above the
// interval from which the broker takes pings for a flood.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
// With the above, a silent peer is noticed before a default lease of 30 s ends.
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
// A clock cannot count to the end of time; nobody waits for longer than this.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

const USER_AGENT: &str = concat!("fila-rust/", env!("CARGO_PKG_VERSION"));
// How tonic's decoder says that an answer exceeds the size limit. Its status is not the one that
// gRPC has for it, and nothing else tells it from a status of the peer's.
const TOO_LARGE: &str = "Error, decoded message length too large";
const REASON_TRAILER: &str = "fila-reason";
const FULL: &str = "more waits to be sent than max_buffered_bytes allows; this one was not sent";

/// A client of one service of the broker's.
pub(crate) trait Stub {
    fn on(transport: Transport, max_message_bytes: usize) -> Self;
}

impl Stub for Service {
    fn on(transport: Transport, max_message_bytes: usize) -> Self {
        Self::new(transport).max_decoding_message_size(max_message_bytes)
    }
}

impl Stub for Admin {
    fn on(transport: Transport, max_message_bytes: usize) -> Self {
        Self::new(transport).max_decoding_message_size(max_message_bytes)
    }
}

/// A broker's address, a channel to it, and everything that calls have in common.
pub(crate) struct Connection {
    pub(crate) target: String,
    pub(crate) backoff: Backoff,
    pub(crate) runtime: Handle,
    // None once it is closed, so that the last call under way takes the socket with it.
    transport: Mutex<Option<Transport>>,
    watch: Arc<Watch>,
    closed: watch::Sender<bool>,
    keys: Keys,
    pub(crate) max_message_bytes: usize,
    pub(crate) enqueues: Pipeline,
    pub(crate) settlements: Pipeline,
    pub(crate) promises: Promises,
    room: Arc<Semaphore>,
    room_bytes: u32,
    has_no_grants: AtomicBool,
    has_no_pipelines: AtomicBool,
}

impl Connection {
    /// Whether the broker settles grants: yes, until it says that it knows no such call.
    pub(crate) fn has_grants(&self) -> bool {
        !self.has_no_grants.load(Ordering::Relaxed)
    }

    pub(crate) fn forget_grants(&self) {
        self.has_no_grants.store(true, Ordering::Relaxed);
    }

    /// Whether the broker takes pipelines: the same.
    pub(crate) fn has_pipelines(&self) -> bool {
        !self.has_no_pipelines.load(Ordering::Relaxed)
    }

    pub(crate) fn forget_pipelines(&self) {
        self.has_no_pipelines.store(true, Ordering::Relaxed);
    }

    /// Connects, and fails if nobody is there.
    pub(crate) async fn open(options: &ClientBuilder) -> Result<Self> {
        let (endpoint, connector, watching) = parts(options)?;
        let connecting = endpoint.connect_with_connector(connector);
        let channel = match tokio::time::timeout(options.timeout, connecting).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => {
                let text = chain(&error);
                let source = Some(Arc::new(error) as _);
                return Err(Error::from_status("UNAVAILABLE", None, &text, source));
            }
            Err(_) => {
                return Err(Error::too_late("the broker did not accept the connection in time"));
            }
        };
        Ok(Self::over(channel, watching, options))
    }

    /// Connects with the first call.
    pub(crate) fn open_lazily(options: &ClientBuilder) -> Result<Self> {
        let (endpoint, connector, watching) = parts(options)?;
        Ok(Self::over(endpoint.connect_with_connector_lazy(connector), watching, options))
    }

    fn over(channel: Channel, watching: Watching, options: &ClientBuilder) -> Self {
        let room_bytes = options.max_buffered_bytes.min(Semaphore::MAX_PERMITS);
        let room_bytes = u32::try_from(room_bytes).unwrap_or(u32::MAX);
        let (watch, keys) = watching;
        Self {
            target: options.target.clone(),
            backoff: options.backoff,
            runtime: Handle::current(),
            transport: Mutex::new(Some(Transport::new(channel, &options.layers))),
            watch,
            closed: watch::Sender::new(false),
            keys,
            max_message_bytes: options.max_message_bytes,
            promises: Promises::default(),
            room: Arc::new(Semaphore::new(room_bytes as usize)),
            room_bytes,
            enqueues: Pipeline::default(),
            settlements: Pipeline::default(),
            has_no_grants: AtomicBool::new(false),
            has_no_pipelines: AtomicBool::new(false),
        }
    }

    /// Whether calls of this client can go on; whether new ones may begin, `promises` says.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if *self.closed.borrow() { Err(Error::client_closed()) } else { Ok(()) }
    }

    /// Room for one more message that waits to be sent, until the deadline or until the client is
    /// closed. A message that is larger than all of the room may have all of it.
    pub(crate) async fn room(
        &self,
        bytes: usize,
        deadline: Instant,
    ) -> Result<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.room_bytes);
        if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(bytes) {
            return Ok(room);
        }
        tokio::select! {
            biased;
            () = self.closing() => Err(Error::client_closed()),
            room = Arc::clone(&self.room).acquire_many_owned(bytes) => {
                room.map_err(|_| Error::client_closed())
            }
            () = tokio::time::sleep_until(deadline) => Err(Error::too_late(FULL)),
        }
    }

    /// tonic has a limit for requests too, but reports it as a failure of the transport.
    fn check_size(&self, size: usize) -> Result<()> {
        let limit = self.max_message_bytes;
        if size <= limit {
            return Ok(());
        }
        let text = format!("the request has {size} bytes; the limit of this client is {limit}");
        Err(Error::from_status("RESOURCE_EXHAUSTED", None, &text, None))
    }

    /// A stub for one call. Fails when the client is closed.
    pub(crate) fn stub<S: Stub>(&self) -> Result<S> {
        let transport = locked(&self.transport).clone().ok_or_else(Error::client_closed)?;
        Ok(S::on(transport, self.max_message_bytes))
    }

    /// The API key for what is sent now. Fails as the function does that gives it.
    pub(crate) fn key(&self) -> Result<Option<Arc<Key>>> {
        self.keys.current()
    }

    /// A request with what travels beside it: the API key and the trace context.
    pub(crate) fn request<T>(message: T, key: Option<&Key>, trace: &Trace) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(key) = key {
            request.metadata_mut().insert("authorization", key.header.clone());
        }
        trace.add_to_metadata(request.metadata_mut());
        request
    }

    /// Sends one request and waits for the answer, until the deadline or until the client is
    /// closed.
    pub(crate) async fn attempt<S, Req, Res, F, Fut>(
        &self,
        message: Req,
        deadline: Instant,
        trace: &Trace,
        invoke: F,
    ) -> Result<Res>
    where
        S: Stub,
        Req: Message,
        F: FnOnce(S, Request<Req>) -> Fut,
        Fut: Future<Output = Result<Response<Res>, Status>>,
    {
        let stub = self.stub()?;
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(Error::too_late("the deadline passed before the request was sent"));
        }
        self.check_size(message.encoded_len())?;
        let mut request = Self::request(message, self.key()?.as_deref(), trace);
        request.set_timeout(remaining);
        tokio::select! {
            biased;
            () = self.closing() => Err(Error::client_closed()),
            answer = tokio::time::timeout_at(deadline, invoke(stub, request)) => match answer {
                Ok(Ok(response)) => Ok(response.into_inner()),
                Ok(Err(status)) => Err(self.failure(status)),
                Err(_) => Err(Error::too_late("")),
            },
        }
    }

    /// Calls `send` again while the broker is away, for as long as the deadline allows. Also says
    /// whether it was called more than once.
    pub(crate) async fn retrying<T, F, Fut>(&self, deadline: Instant, send: F) -> (Result<T>, bool)
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let mut attempts = 0;
        loop {
            let error = match send().await {
                Err(error) if error.is_unavailable() => error,
                outcome => return (outcome, attempts > 0),
            };
            let next = Instant::now() + self.backoff.delay(attempts, chance());
            if next >= deadline {
                return (Err(error), attempts > 0);
            }
            attempts += 1;
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.closing() => {}
            }
        }
    }

    /// What a failed call means. The cause is kept, unless the peer's text holds the API key.
    pub(crate) fn failure(&self, status: Status) -> Error {
        if *self.closed.borrow() {
            return Error::client_closed();
        }
        let text = match std::error::Error::source(&status) {
            Some(source) => chain(source),
            None => status.message().to_owned(),
        };
        let redacted = self.redacted(&text);
        let code = code_of(&status);
        let reason = status
            .metadata()
            .get(REASON_TRAILER)
            .and_then(|reason| reason.to_str().ok())
            .map(str::to_owned);
        let is_secret = redacted != text;
        let source = if is_secret { None } else { Some(Arc::new(status) as _) };
        Error::from_status(code, reason, &redacted, source)
    }

    /// The peer's text without the API key.
    pub(crate) fn redacted(&self, text: &str) -> String {
        self.keys.redacted(text)
    }

    /// Ends every call under way. Harmless twice.
    pub(crate) async fn close(&self) {
        self.watch.close();
        self.closed.send_replace(true);
        locked(&self.transport).take();
        tokio::join!(self.enqueues.close(), self.settlements.close());
    }

    pub(crate) async fn closing(&self) {
        // The sender is this connection's own, so this cannot fail.
        let _ = self.closed.subscribe().wait_for(|is_closed| *is_closed).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // An end that nobody has to be told of.
        self.watch.close();
    }
}

/// What knows of a channel's connections, and what its calls prove themselves with.
type Watching = (Arc<Watch>, Keys);

/// What a channel is made of, and what goes with it. Checks the options.
fn parts(options: &ClientBuilder) -> Result<(Endpoint, Connector, Watching)> {
    let addresses = Address::all_of(&options.target)?;
    let keys = Keys::new(&options.api_key)?;
    let tls = options.tls.clone().map(Tls::new).transpose()?;
    let watch = Watch::new(options.on_connection.clone());
    let connector = Connector::new(&addresses, tls, &watch);
    let wrong = || Error::invalid(&format!("target \"{}\" is no address", options.target));
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    // What requests say that they are for: of several the first, which brokers do not look at.
    let origin = format!("{scheme}://{}", addresses[0]).parse().map_err(|_| wrong())?;
    let endpoint = Endpoint::from(addresses[0].uri())
        .origin(origin)
        .user_agent(USER_AGENT)
        .map_err(|_| wrong())?
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    Ok((endpoint, connector, (watch, keys)))
}

/// The moment a call that begins now has to be over.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(TIMEOUT_MAX)
}

/// A number from 0 to 1 that others cannot foresee, which is all that jitter needs.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn chance() -> f64 {
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}

/// No code that can panic runs under this crate's locks, so a poisoned one is as good as any.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The status by name. A failure of the transport has an error behind it, and whatever tonic makes
/// of that one, it means that the broker was not there to answer.
fn code_of(status: &Status) -> &'static str {
    let has_timed_out = sources(status).any(|source| source.is::<TimeoutExpired>());
    match status.code() {
        _ if has_timed_out => "DEADLINE_EXCEEDED",
        _ if std::error::Error::source(status).is_some() => "UNAVAILABLE",
        Code::OutOfRange if status.message().starts_with(TOO_LARGE) => "RESOURCE_EXHAUSTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

fn sources<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// An error and its causes as one clause; "transport error" alone would help nobody.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in sources(error).map(ToString::to_string) {
        // Some repeat their cause's text in their own.
        if !texts.last().is_some_and(|last| last.ends_with(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

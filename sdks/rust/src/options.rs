// SPDX-License-Identifier: AGPL-3.0-only
//! What a user may choose about a connection. Checked when a client is made of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tower::Layer;

use crate::BoxError;
use crate::api_key::KeySource;
use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::link::{ConnectionEvent, OnConnection};
use crate::tls::TlsOptions;
use crate::transport::{AddLayer, Transport, boxed_layer};

pub(crate) const DEFAULT_TARGET: &str = "127.0.0.1:5555";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
// The broker keeps single payloads below 4 MiB; frames and pages hold many of them.
const DEFAULT_MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
// Some thirty full batches: more than a broker that keeps up ever leaves waiting.
const DEFAULT_BUFFERED_BYTES_MAX: usize = 32 * 1024 * 1024;
// As long as a call may take.
const DEFAULT_CLOSE_TIMEOUT: Duration = DEFAULT_TIMEOUT;
// Doubling stops long before this; the bound keeps the power small after hours of trying.
const DOUBLINGS_MAX: u32 = 30;

/// How long to wait between attempts.
///
/// The ceiling starts at `initial` and doubles up to `maximum`; each wait is a random part of it,
/// so that the clients of a broker that restarts do not all come back in the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The ceiling of the first wait.
    pub initial: Duration,
    /// The ceiling that doubling reaches.
    pub maximum: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_millis(100), maximum: Duration::from_secs(5) }
    }
}

impl Backoff {
    /// The wait before retry number `attempt`, counted from 0; `chance` is from 0 to 1.
    pub(crate) fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let doubled = self.initial.saturating_mul(1 << attempt.min(DOUBLINGS_MAX));
        doubled.min(self.maximum).mul_f64(chance)
    }
}

/// The options of a [`Client`], set one by one.
///
/// ```no_run
/// # async fn connect() -> fila::Result<()> {
/// let client = fila::Client::builder()
///     .target("broker.example:5555")
///     .timeout(std::time::Duration::from_secs(10))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ClientBuilder {
    pub(crate) target: String,
    pub(crate) tls: Option<TlsOptions>,
    pub(crate) api_key: KeySource,
    pub(crate) layers: Vec<AddLayer>,
    pub(crate) on_connection: Option<OnConnection>,
    pub(crate) timeout: Duration,
    pub(crate) max_message_bytes: usize,
    pub(crate) max_buffered_bytes: usize,
    pub(crate) close_timeout: Duration,
    pub(crate) backoff: Backoff,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            target: DEFAULT_TARGET.to_owned(),
            tls: None,
            api_key: KeySource::Nowhere,
            layers: Vec::new(),
            on_connection: None,
            timeout: DEFAULT_TIMEOUT,
            max_message_bytes: DEFAULT_MESSAGE_BYTES_MAX,
            max_buffered_bytes: DEFAULT_BUFFERED_BYTES_MAX,
            close_timeout: DEFAULT_CLOSE_TIMEOUT,
            backoff: Backoff::default(),
        }
    }
}

impl ClientBuilder {
    /// The broker's `host:port`; `127.0.0.1:5555` unless set. Of several, `a:5555,b:5555`, the
    /// members of one cluster, the first that answers is used, and after its loss they are tried
    /// again, in order. With TLS each is held to its own name unless `server_name` is given.
    #[must_use]
    pub fn target(mut self, target: impl Into<String>) -> Self {
        self.target = target.into();
        self
    }

    /// Encrypts the connection; without this it is plain text.
    #[must_use]
    pub fn tls(mut self, tls: TlsOptions) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sent with every call, and never shown by an error or by `Debug`.
    #[must_use]
    pub fn api_key(mut self, api_key: impl Into<String>) -> Self {
        self.api_key = KeySource::Fixed(api_key.into());
        self
    }

    /// Asked for the key of each call and each opening of a stream, so that keys can be changed
    /// without another client. It must be quick: keep what is slow to get.
    ///
    /// What it fails with fails that call:
    /// [`Unauthenticated`](crate::ErrorKind::Unauthenticated).
    #[must_use]
    pub fn api_key_from<E: Into<BoxError>>(
        mut self,
        api_key: impl Fn() -> std::result::Result<String, E> + Send + Sync + 'static,
    ) -> Self {
        self.api_key = KeySource::Asked(Arc::new(move || api_key().map_err(Into::into)));
        self
    }

    /// Puts a tower layer around what requests go through, outside those that were added before.
    /// With [`tonic::service::InterceptorLayer`] that is an interceptor of tonic's.
    ///
    /// It sees calls and openings of streams with all that they carry. Batches travel through
    /// streams that are opened once, so it does not see each of them.
    #[must_use]
    pub fn layer<L, S, B>(mut self, layer: L) -> Self
    where
        L: Layer<Transport, Service = S> + Send + Sync + 'static,
        S: Service<http::Request<Body>, Response = http::Response<B>>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: tonic::codegen::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.layers.push(boxed_layer(layer));
        self
    }

    /// Called when the connection is there, lost, or cannot be made; once per change. The log says
    /// the same. It must be quick; a panic in it is logged and changes nothing.
    #[must_use]
    pub fn on_connection(
        mut self,
        on_connection: impl Fn(&ConnectionEvent) + Send + Sync + 'static,
    ) -> Self {
        self.on_connection = Some(Arc::new(on_connection));
        self
    }

    /// The deadline of every call, 5 s unless set; streams have none.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The largest request and answer, 64 MiB unless set.
    #[must_use]
    pub fn max_message_bytes(mut self, max_message_bytes: usize) -> Self {
        self.max_message_bytes = max_message_bytes;
        self
    }

    /// The most bytes of messages, acks and the like that single calls have waiting to be sent, 32
    /// MiB unless set. A call beyond it waits, within its deadline.
    #[must_use]
    pub fn max_buffered_bytes(mut self, max_buffered_bytes: usize) -> Self {
        self.max_buffered_bytes = max_buffered_bytes;
        self
    }

    /// How long [`Client::close`] lets calls be answered that have begun, 5 s unless set; zero does
    /// not wait.
    #[must_use]
    pub fn close_timeout(mut self, close_timeout: Duration) -> Self {
        self.close_timeout = close_timeout;
        self
    }

    /// The waits between attempts, from 0.1 s to 5 s unless set.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Connects to the broker. Once that was done the client connects again by itself, with the
    /// first call after the connection was lost.
    ///
    /// Fails with [`Unavailable`](crate::ErrorKind::Unavailable) when nobody is there, or nobody
    /// with the right certificate, with [`DeadlineExceeded`](crate::ErrorKind::DeadlineExceeded)
    /// when that takes longer than `timeout`, and with
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an option, which it names.
    pub async fn connect(self) -> Result<Client> {
        self.check()?;
        Ok(Client::over(Connection::open(&self).await?, &self))
    }

    /// A client that connects with its first call, so that it may be made before there is a broker.
    /// Checks the options as [`connect`](Self::connect) does. Has to be called in a tokio runtime.
    pub fn connect_lazy(self) -> Result<Client> {
        self.check()?;
        Ok(Client::over(Connection::open_lazily(&self)?, &self))
    }

    fn check(&self) -> Result<()> {
        if self.timeout.is_zero() {
            return Err(Error::invalid("timeout must be positive, got 0"));
        }
        if self.max_buffered_bytes == 0 {
            return Err(Error::invalid("max_buffered_bytes must be positive, got 0"));
        }
        let Backoff { initial, maximum } = self.backoff;
        if initial.is_zero() || initial > maximum {
            return Err(Error::invalid(&format!(
                "backoff needs 0 < initial <= maximum, got {initial:?} and {maximum:?}"
            )));
        }
        Ok(())
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ClientBuilder")
            .field("target", &self.target)
            .field("tls", &self.tls)
            .field("has_api_key", &!matches!(self.api_key, KeySource::Nowhere))
            .field("timeout", &self.timeout)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("max_buffered_bytes", &self.max_buffered_bytes)
            .field("close_timeout", &self.close_timeout)
            .field("backoff", &self.backoff)
            .finish()
    }
}

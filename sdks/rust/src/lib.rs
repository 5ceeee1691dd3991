// SPDX-License-Identifier: AGPL-3.0-only
//! Client of the Fila message broker.
//!
//! ```no_run
//! use fila::{Client, EnqueueMessage, QueueSettings};
//!
//! # async fn run() -> fila::Result<()> {
//! let client = Client::connect("127.0.0.1:5555").await?;
//! client.create_queue("orders", QueueSettings::default()).await?;
//! client.enqueue(EnqueueMessage::new("orders", "hello").header("tenant", "acme")).await?;
//!
//! let consumer = client.consume("orders").await?;
//! while let Some(message) = consumer.next().await {
//!     message?.ack().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A [`Worker`] handles messages side by side, and settles them by what their handler returns.
//!
//! A [`Client`] is cheap to clone and safe to share. Concurrent enqueues, acks and nacks of its
//! clones travel in shared requests; nothing lingers. Every call has a deadline, 5 s unless told
//! otherwise. What goes wrong is an [`Error`], whose [`kind`](Error::kind) is what to match on.
//!
//! The feature `otel` puts the trace context of the active OpenTelemetry span into message headers
//! and call metadata, and makes spans around the handling of messages; see [`tracing`].

mod access;
mod address;
mod admin;
mod api_key;
mod batch;
mod client;
mod coalesce;
mod connection;
mod connector;
mod consumer;
mod error;
mod grants;
mod health;
mod leases;
mod link;
mod message;
mod mirrored;
mod options;
mod payload;
mod pipeline;
mod promises;
mod stats;
#[cfg(feature = "testing")]
pub mod testing;
mod throttle;
mod tls;
pub mod tracing;
mod transport;
mod worker;

#[allow(clippy::all, clippy::pedantic, missing_docs, unused)]
mod proto {
    include!("proto/fila.v1.rs");
}

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub use access::{Acl, AclEntry, ApiKeyInfo, ApiKeyOptions, NewApiKey, Permission};
pub use admin::{PeekOptions, QueueSettings, RedriveOptions, Subject};
pub use bytes::Bytes;
pub use client::{Client, ReceiveOptions};
pub use consumer::{Batches, ConsumeOptions, Consumer};
pub use error::{Error, ErrorKind, Result};
pub use link::ConnectionEvent;
pub use message::{ConsumeMessage, EnqueueMessage, Enqueued, Failure, FailureCause, Message, Nack};
pub use options::{Backoff, ClientBuilder};
pub use payload::PayloadError;
pub use stats::{
    DeletedQueue, Explanation, FairnessKeyStats, HookErrorPolicy, HookStats, MessageState,
    PeekPage, PeekedMessage, QueueConfig, QueueCounters, QueueInfo, QueueStats, WaitKind,
    WaitReason,
};
pub use throttle::{ThrottleFilter, ThrottleKeyStats, ThrottlePage};
pub use tls::{Pem, TlsOptions};
/// What [layers](ClientBuilder::layer) are made with, in the version that this crate uses.
pub use tonic;
pub use transport::Transport;
pub use worker::{EventKind, HandlerError, StopHandle, Worker, WorkerEvent};

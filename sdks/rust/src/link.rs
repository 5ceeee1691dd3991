// SPDX-License-Identifier: AGPL-3.0-only
//! The state of a client's connection, and who is told of it.
//!
//! gRPC's channel says nothing of its connections, so what carries their bytes does: a connection
//! is there with the first bytes of the broker, and lost with its end. Each change is told once,
//! however many attempts it takes.

use std::io::{Error, IoSlice, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::locked;

/// What happened to a client's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// A broker answers.
    Connected {
        /// Which one, `host:port`.
        address: String,
    },
    /// The connection has ended, and not because the client was closed.
    Lost {
        /// Why, where that is known.
        reason: Option<String>,
    },
    /// No broker could be reached. What follows is `Connected`, whenever that is.
    Unreachable {
        /// What the attempt failed with.
        reason: String,
    },
}

pub(crate) type OnConnection = Arc<dyn Fn(&ConnectionEvent) + Send + Sync>;

#[derive(Default)]
struct State {
    // More than one where an old connection still answers while there is a new one.
    links: usize,
    // Since when there is none, after there was one or an attempt that failed.
    away_since: Option<Instant>,
    is_unreachable: bool,
}

/// Watches the connection of one client.
pub(crate) struct Watch {
    on_connection: Option<OnConnection>,
    state: Mutex<State>,
    is_closed: AtomicBool,
}

impl Watch {
    pub(crate) fn new(on_connection: Option<OnConnection>) -> Arc<Self> {
        Arc::new(Self { on_connection, state: Mutex::default(), is_closed: AtomicBool::new(false) })
    }

    /// What happens from now on is what the client wants.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn link(self: &Arc<Self>, address: String, io: impl Io + 'static) -> Link {
        let watch = Arc::clone(self);
        Link { io: Box::new(io), watch, address, is_up: false, is_over: false }
    }

    fn connected(&self, address: &str) {
        let away_since = {
            let mut state = locked(&self.state);
            state.links += 1;
            if state.links > 1 {
                return;
            }
            state.is_unreachable = false;
            state.away_since.take()
        };
        match away_since {
            Some(since) => {
                let away = since.elapsed();
                tracing::info!(address, ?away, "the broker is there again");
            }
            None => tracing::debug!(address, "connected to the broker"),
        }
        self.tell(&ConnectionEvent::Connected { address: address.to_owned() });
    }

    fn lost(&self, reason: Option<String>) {
        {
            let mut state = locked(&self.state);
            state.links -= 1;
            if state.links > 0 || self.is_closed.load(Ordering::Relaxed) {
                return;
            }
            state.away_since = Some(Instant::now());
        }
        tracing::warn!(reason = reason.as_deref().unwrap_or("unknown"), "the connection was lost");
        self.tell(&ConnectionEvent::Lost { reason });
    }

    pub(crate) fn unreachable(&self, reason: String) {
        {
            let mut state = locked(&self.state);
            let is_closed = self.is_closed.load(Ordering::Relaxed);
            if state.is_unreachable || state.links > 0 || is_closed {
                return;
            }
            state.is_unreachable = true;
            state.away_since.get_or_insert_with(Instant::now);
        }
        tracing::warn!(reason, "the broker cannot be reached");
        self.tell(&ConnectionEvent::Unreachable { reason });
    }

    /// Without the lock: who is told may drop the client.
    fn tell(&self, event: &ConnectionEvent) {
        let Some(on_connection) = &self.on_connection else { return };
        if catch_unwind(AssertUnwindSafe(|| on_connection(event))).is_err() {
            tracing::error!(?event, "on_connection panicked");
        }
    }
}

/// What bytes travel through.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// One connection.
pub(crate) struct Link {
    io: Box<dyn Io>,
    watch: Arc<Watch>,
    address: String,
    is_up: bool,
    is_over: bool,
}

impl Link {
    fn answered(&mut self) {
        if !std::mem::replace(&mut self.is_up, true) {
            self.watch.connected(&self.address);
        }
    }

    fn ended(&mut self, reason: Option<String>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        if self.is_up {
            self.watch.lost(reason);
        } else {
            let reason = reason.unwrap_or_else(|| "it did not answer".to_owned());
            self.watch.unreachable(format!("{}: {reason}", self.address));
        }
    }

    fn failed(&mut self, error: Error) -> Error {
        self.ended(Some(error.to_string()));
        error
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let (filled, has_room) = (into.filled().len(), into.remaining() > 0);
        ready!(Pin::new(&mut self.io).poll_read(context, into)).map_err(|e| self.failed(e))?;
        if into.filled().len() > filled {
            self.answered();
        } else if has_room {
            self.ended(Some("the broker closed it".to_owned()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.failed(error)))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(context, bytes));
        Poll::Ready(written.map_err(|error| self.failed(error)))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.ended(None);
    }
}

// SPDX-License-Identifier: AGPL-3.0-only
//! One connection from its handshake to its end. A peer that does not finish TLS's handshake and
//! HTTP/2's greeting in time is left alone with them.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout_at, Instant};

use crate::budget::WAITING_OF_ONE_MAX;
use crate::figures::Place;
use crate::serve::serve;
use crate::settings::Settings;
use crate::state::State;
use crate::watched::{Stream, Watched};

/// What a body that nobody reads yet may take up, and all such bodies of a connection. What is read
/// at once is charged to the budget, so this bounds what connections can pin beside it. Bodies that
/// wait for room must not fill the connection's window: those that have room come through it, too.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = (WAITING_OF_ONE_MAX as u32 + 4) * STREAM_WINDOW;
/// A peer that does not read its answers pins this much of a stream, and one frame.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Streams that are reset before anybody looked at them; `floods` counts all resets.
const UNSEEN_RESETS_MAX: usize = 1000;
/// Headers beyond metadata's limit are taken in as far as this, so that the refusal is gRPC's own.
const HEADERS_SLACK: u32 = 4;

/// Runs HTTP/2's tasks on the edge's own thread.
#[derive(Clone)]
pub struct OwnThread;

impl<F: Future + 'static> hyper::rt::Executor<F> for OwnThread {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

pub fn http(settings: &Settings) -> http2::Builder<OwnThread> {
    let mut builder = http2::Builder::new(OwnThread);
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(settings.max_concurrent_streams)
        .max_header_list_size(settings.max_metadata_bytes.saturating_mul(HEADERS_SLACK))
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .max_local_error_reset_streams(UNSEEN_RESETS_MAX)
        .keep_alive_interval(settings.keepalive_time)
        .keep_alive_timeout(settings.keepalive_timeout);
    builder
}

pub async fn run(
    state: Rc<State>,
    socket: TcpStream,
    mut draining: watch::Receiver<bool>,
    _place: Place,
) {
    let deadline = Instant::now() + state.settings.handshake_timeout;
    let Some(stream) = secured(&state, socket, deadline).await else {
        state.figures.handshakes_cut.up();
        return;
    };
    let greeted = Rc::new(Cell::new(false));
    let watched = Watched::new(
        stream,
        state.settings.min_ping_interval,
        greeted.clone(),
        state.figures.clone(),
    );
    let reader = state.unread.reader();
    let service = service_fn(|request| serve(state.clone(), reader.clone(), request));
    let mut connection = pin!(state.http.serve_connection(TokioIo::new(watched), service));
    let mut silence = pin!(sleep_until(deadline));
    let mut is_greeting = true;
    let mut is_draining = false;
    loop {
        tokio::select! {
            _ = connection.as_mut() => return, // how it ended is the peer's business
            () = silence.as_mut(), if is_greeting => {
                is_greeting = false;
                if !greeted.get() {
                    state.figures.handshakes_cut.up();
                    return;
                }
            }
            () = reader.cut() => {
                state.figures.unread_cut.up();
                return; // there is no telling a peer that does not read
            }
            _ = draining.wait_for(|&now| now), if !is_draining => {
                is_draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn secured(state: &State, socket: TcpStream, deadline: Instant) -> Option<Stream> {
    // Without it small answers wait for the acknowledgement of earlier ones.
    socket.set_nodelay(true).ok()?;
    let Some(certificates) = &state.certificates else { return Some(Stream::Plain(socket)) };
    let handshake = certificates.acceptor().accept(socket);
    let stream = timeout_at(deadline, handshake).await.ok()?.ok()?;
    Some(Stream::Tls(Box::new(stream)))
}

/// How long a connection may take to hand over its last answers when the edge closes.
pub const LAST_WORDS: Duration = Duration::from_millis(500);

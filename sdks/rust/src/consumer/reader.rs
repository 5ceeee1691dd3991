// SPDX-License-Identifier: AGPL-3.0-only
//! The task of a consumer: it reads frames, opens another stream when one is lost, and gives back
//! at the end what was never handed out.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tonic::Streaming;

use super::{Core, Ending};
use crate::batch::{Nack, send_many};
use crate::connection::{Connection, Service, chance, locked};
use crate::error::{Error, ErrorKind, Result};
use crate::leases::Leases;
use crate::proto;
use crate::tracing::Trace;

// Giving messages back is a courtesy: their leases end anyway, so it may not hold up a shutdown.
// First come the frames that are about to arrive, then the request that gives all of them back.
const DRAIN_TIME: Duration = Duration::from_millis(50);
const RELEASE_TIME: Duration = Duration::from_secs(1);

type Frames = Streaming<proto::ConsumeResponse>;
type Opening = Pin<Box<dyn Future<Output = Result<Frames>> + Send>>;

enum Phase {
    Idle,
    // The broker may answer with its first frame only: for as long as the queue is empty.
    Opening(Opening),
    Reading(Box<Frames>),
}

/// The task that reads frames.
pub(super) struct Reader {
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
    pub(super) fn new(
        core: &Arc<Core>,
        connection: &Arc<Connection>,
        leases: &Arc<Leases>,
        is_kept: bool,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            connection: Arc::clone(connection),
            leases: Arc::clone(leases),
            is_kept,
            trace: Trace::current(),
            phase: Phase::Idle,
            opened_at: Instant::now(),
            attempts: 0,
            is_lost: false,
        }
    }

    pub(super) async fn run(mut self) {
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
        let key = self.connection.key();
        let (message, trace) = (self.core.request.clone(), self.trace.clone());
        let connection = Arc::clone(&self.connection);
        Box::pin(async move {
            let mut stub = stub?;
            let request = Connection::request(message, key?.as_deref(), &trace);
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

// SPDX-License-Identifier: AGPL-3.0-only
//! The client: producing, consuming and settling messages. Operating a broker is in `admin` and
//! `access`; sending, batching and reading are the business of the modules below.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use prost::Message;
use tokio::time::{timeout, timeout_at};
use tonic::{Request, Response, Status};

use crate::batch::{self, Batch, Enqueue, Extend, send_many};
use crate::coalesce::Coalescer;
use crate::connection::{Connection, Service, Stub, deadline_after, locked};
use crate::consumer::{ConsumeOptions, Consumer, Core};
use crate::error::{Error, Result};
use crate::grants::{self, AckItem};
use crate::leases::Leases;
use crate::message::{ConsumeMessage, EnqueueMessage, Enqueued, Nack, as_ms};
use crate::options::ClientBuilder;
use crate::proto;
use crate::tracing::Trace;

/// What [`Client::receive`] asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveOptions {
    /// The most messages to return, 1 unless set.
    pub max_messages: u32,
    /// How long to wait for the first message; zero returns at once.
    pub wait: Duration,
    /// How long each lease lasts; `None` takes the queue's visibility timeout.
    pub visibility_timeout: Option<Duration>,
}

impl Default for ReceiveOptions {
    fn default() -> Self {
        Self { max_messages: 1, wait: Duration::ZERO, visibility_timeout: None }
    }
}

/// A connection to a broker. Clones are cheap and share it; concurrent calls of all of them travel
/// in shared batches.
///
/// Dropping a call's future gives up the answer for that caller alone. A client belongs to the
/// tokio runtime that it was made on.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    timeout: Duration,
}

struct Shared {
    connection: Arc<Connection>,
    leases: Arc<Leases>,
    close_timeout: Duration,
    enqueues: Arc<Coalescer<Enqueue>>,
    acks: Arc<Coalescer<grants::Ack>>,
    nacks: Arc<Coalescer<batch::Nack>>,
    extensions: Arc<Coalescer<Extend>>,
    // Weak, so that a consumer that the application drops is gone. None once the client is closed.
    consumers: Mutex<Option<Vec<Weak<Core>>>>,
}

/// One unary call: what it may do, and what an error about it should name.
pub(crate) struct Call<'a> {
    connection: &'a Connection,
    timeout: Duration,
    queue: Option<&'a str>,
    message_id: Option<&'a str>,
    is_repeatable: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn queue(mut self, queue: &'a str) -> Self {
        self.queue = Some(queue);
        self
    }

    pub(crate) fn message(mut self, message_id: Option<&'a str>) -> Self {
        self.message_id = message_id;
        self
    }

    /// Doing it twice is harmless, so it is sent again while the broker is away.
    pub(crate) fn repeatable(mut self) -> Self {
        self.is_repeatable = true;
        self
    }

    pub(crate) async fn send<S, Req, Res, F, Fut>(self, message: Req, invoke: F) -> Result<Res>
    where
        S: Stub,
        Req: Message + Clone,
        F: Fn(S, Request<Req>) -> Fut,
        Fut: Future<Output = Result<Response<Res>, Status>>,
    {
        self.connection.promises.check_open()?;
        let deadline = deadline_after(self.timeout);
        let trace = Trace::current();
        let attempt = || self.connection.attempt(message.clone(), deadline, &trace, &invoke);
        let answer = if self.is_repeatable {
            self.connection.retrying(deadline, attempt).await.0
        } else {
            attempt().await
        };
        answer.map_err(|error| error.about(self.queue, self.message_id))
    }
}

impl Client {
    /// Connects to the broker at `target`, `127.0.0.1:5555` for example, with default options.
    /// [`ClientBuilder::connect_lazy`] makes a client before there is a broker.
    ///
    /// Fails with [`Unavailable`](crate::ErrorKind::Unavailable) when nobody is there, and with
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when the target is not `host:port`.
    pub async fn connect(target: impl Into<String>) -> Result<Self> {
        Self::builder().target(target).connect().await
    }

    /// Options to choose before connecting.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) fn over(connection: Connection, options: &ClientBuilder) -> Self {
        let connection = Arc::new(connection);
        let shared = Shared {
            leases: Leases::new(Arc::clone(&connection), options.timeout),
            close_timeout: options.close_timeout,
            enqueues: Coalescer::new(Arc::clone(&connection)),
            acks: Coalescer::new(Arc::clone(&connection)),
            nacks: Coalescer::new(Arc::clone(&connection)),
            extensions: Coalescer::new(Arc::clone(&connection)),
            consumers: Mutex::new(Some(Vec::new())),
            connection,
        };
        Self { shared: Arc::new(shared), timeout: options.timeout }
    }

    /// The same client with another deadline for the calls made through what this returns.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { shared: Arc::clone(&self.shared), timeout }
    }

    /// Waits until every enqueue, ack, nack and extension, of all clones, that has begun is
    /// answered, whatever the answer is.
    ///
    /// Fails with [`DeadlineExceeded`](crate::ErrorKind::DeadlineExceeded) if that takes longer
    /// than this client's timeout, which [`with_timeout`](Self::with_timeout) changes.
    pub async fn flush(&self) -> Result<()> {
        let promises = &self.shared.connection.promises;
        promises.check_open()?;
        let kept = timeout_at(deadline_after(self.timeout), promises.kept()).await;
        kept.map_err(|_| Error::too_late("not everything was answered in time"))
    }

    /// Ends consumers, and lets enqueues, acks, nacks and extensions be answered that have begun,
    /// for as long as [`close_timeout`](ClientBuilder::close_timeout) says; of all clones.
    ///
    /// What is left then, and every call from now on, fails with
    /// [`ClientClosed`](crate::ErrorKind::ClientClosed). Harmless twice.
    pub async fn close(&self) {
        let connection = &self.shared.connection;
        connection.promises.close();
        let consumers = locked(&self.shared.consumers).take().unwrap_or_default();
        let consumers: Vec<_> = consumers.iter().filter_map(Weak::upgrade).collect();
        consumers.iter().for_each(|core| core.close());
        let given_back = async {
            for core in &consumers {
                core.ended().await;
            }
        };
        // What is not answered by then is cut off, and told so.
        let answered = timeout(self.shared.close_timeout, connection.promises.kept());
        let ((), _) = tokio::join!(given_back, answered);
        connection.close().await;
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.shared.connection
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A call with this client's deadline.
    pub(crate) fn call(&self) -> Call<'_> {
        Call {
            connection: &self.shared.connection,
            timeout: self.timeout,
            queue: None,
            message_id: None,
            is_repeatable: false,
        }
    }

    // --- Produce -------------------------------------------------------------------------------

    /// Stores one message and returns its id.
    ///
    /// `Unavailable`, `DeadlineExceeded` and `StorageFailed` leave open whether it was stored. With
    /// an idempotency key it is sent again while the broker is away, up to the deadline.
    pub async fn enqueue(&self, message: EnqueueMessage) -> Result<String> {
        let queue = message.queue.clone();
        let item = message.into_request(&Trace::current());
        let enqueues = &self.shared.enqueues;
        let stored = if Enqueue::is_repeatable(&item) {
            enqueues.call(|| item.clone(), true, self.timeout).await
        } else {
            enqueues.call_once(item, self.timeout).await
        };
        stored.map(|stored| stored.message_id).map_err(|error| error.about(Some(&queue), None))
    }

    /// Stores many messages in order, possibly in several queues; one result per message.
    ///
    /// They travel in as few requests as fit, one after the other, each with its own deadline. A
    /// request that fails as a whole fails its messages and all that follow; it is sent again while
    /// the broker is away if all its messages have idempotency keys. The call itself fails only
    /// when the client is closed.
    pub async fn enqueue_many(
        &self,
        messages: impl IntoIterator<Item = EnqueueMessage>,
    ) -> Result<Vec<Result<Enqueued>>> {
        let _promise = self.shared.connection.promises.give()?;
        let trace = Trace::current();
        let items = messages.into_iter().map(|message| message.into_request(&trace));
        send_many::<Enqueue>(&self.shared.connection, items, self.timeout).await
    }

    // --- Consume -------------------------------------------------------------------------------

    /// Messages of a queue as they become ready, for as long as the consumer lives.
    ///
    /// It is opened in the background, also while the broker is away; an unknown queue is reported
    /// by the first [`next`](Consumer::next). Fails when the client is closed.
    pub async fn consume(&self, queue: impl Into<String>) -> Result<Consumer> {
        self.consume_with(queue, ConsumeOptions::default()).await
    }

    /// [`consume`](Self::consume) with options.
    pub async fn consume_with(
        &self,
        queue: impl Into<String>,
        options: ConsumeOptions,
    ) -> Result<Consumer> {
        let request = proto::ConsumeRequest {
            queue: queue.into(),
            max_in_flight: options.max_in_flight,
            max_batch: options.batch_size,
            visibility_timeout_ms: options.visibility_timeout.map_or(0, as_ms),
        };
        let mut consumers = locked(&self.shared.consumers);
        let consumers = consumers.as_mut().ok_or_else(Error::client_closed)?;
        let Shared { connection, leases, .. } = &*self.shared;
        let core = Core::open(connection, leases, request, options.extend_leases);
        consumers.retain(|core| core.strong_count() > 0);
        consumers.push(Arc::downgrade(&core));
        Ok(Consumer::new(core, self.clone()))
    }

    /// Leases some messages, waiting for the first as long as the options say; may return none.
    pub async fn receive(
        &self,
        queue: &str,
        options: ReceiveOptions,
    ) -> Result<Vec<ConsumeMessage>> {
        let request = proto::ReceiveRequest {
            queue: queue.to_owned(),
            max_messages: options.max_messages,
            wait_ms: as_ms(options.wait),
            visibility_timeout_ms: options.visibility_timeout.map_or(0, as_ms),
        };
        let mut call = self.call().queue(queue);
        // The broker may use all of the wait before it begins to answer.
        call.timeout = call.timeout.saturating_add(options.wait);
        let response =
            call.send(request, |mut service: Service, request| async move {
                service.receive(request).await
            })
            .await?;
        let count = response.messages.len() as u64;
        let leased = |raw| ConsumeMessage::new(raw, self.clone(), count);
        Ok(response.messages.into_iter().map(leased).collect())
    }

    /// Reports that a leased message was processed; it is gone.
    ///
    /// Fails with `MessageNotFound` when it is not leased, and with `LeaseExpired` when the token
    /// is of an earlier delivery. With a token it is sent again while the broker is away, up to the
    /// deadline; the message that is gone by then is success. Without one the message id alone
    /// decides, and it is never sent twice: after `Unavailable` the message is gone, or comes back
    /// when its lease ends.
    pub async fn ack(
        &self,
        queue: &str,
        message_id: &str,
        lease_token: Option<&str>,
    ) -> Result<()> {
        self.ack_one(queue, message_id, lease_token, 0).await
    }

    pub(crate) async fn ack_one(
        &self,
        queue: &str,
        message_id: &str,
        lease_token: Option<&str>,
        frame_size: u64,
    ) -> Result<()> {
        let lease_token = lease_token.unwrap_or_default();
        let item = || {
            let request = proto::AckRequest {
                queue: queue.to_owned(),
                message_id: message_id.to_owned(),
                lease_token: lease_token.to_owned(),
            };
            AckItem { request, frame_size }
        };
        let settled = self.shared.acks.call(item, !lease_token.is_empty(), self.timeout).await;
        settled.map_err(|error| error.about(Some(queue), Some(message_id)))
    }

    /// Acks many messages; one outcome for each, in order. Those that came together, and are acked
    /// together, travel as one. The call itself fails only when the client is closed.
    pub async fn ack_many<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a ConsumeMessage>,
    ) -> Result<Vec<Result<()>>> {
        let item = |message: &ConsumeMessage| AckItem {
            request: proto::AckRequest {
                queue: message.queue.clone(),
                message_id: message.id.clone(),
                lease_token: message.lease_token.clone(),
            },
            frame_size: message.frame_size(),
        };
        let _promise = self.shared.connection.promises.give()?;
        // Collected, because a future that holds borrowed messages could not be spawned.
        let messages: Vec<_> = messages.into_iter().cloned().collect();
        let items = messages.iter().map(item).collect();
        let outcomes = grants::ack_many(&self.shared.connection, items, self.timeout).await?;
        Ok(messages.iter().zip(outcomes).map(|(message, it)| message.settled(it)).collect())
    }

    /// Reports that processing failed: the message is retried or dead-lettered.
    ///
    /// With [`Nack::retry_after`] it is backpressure, not failure. Fails as [`ack`](Self::ack)
    /// does.
    pub async fn nack(
        &self,
        queue: &str,
        message_id: &str,
        lease_token: Option<&str>,
        nack: impl Into<Nack>,
    ) -> Result<()> {
        let nack = nack.into();
        let item = || nack.request(queue, message_id, lease_token);
        let is_repeatable = lease_token.is_some_and(|token| !token.is_empty());
        let settled = self.shared.nacks.call(item, is_repeatable, self.timeout).await;
        settled.map_err(|error| error.about(Some(queue), Some(message_id)))
    }

    /// Nacks many messages for the same reason; one outcome for each, in order. The call itself
    /// fails only when the client is closed.
    pub async fn nack_many<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a ConsumeMessage>,
        nack: impl Into<Nack>,
    ) -> Result<Vec<Result<()>>> {
        let _promise = self.shared.connection.promises.give()?;
        let nack = nack.into();
        let messages: Vec<_> = messages.into_iter().cloned().collect();
        let item = |message: &ConsumeMessage| {
            nack.request(&message.queue, &message.id, Some(&message.lease_token))
        };
        let items: Vec<_> = messages.iter().map(item).collect();
        let Shared { connection, .. } = &*self.shared;
        let outcomes =
            send_many::<batch::Nack>(connection, items.into_iter(), self.timeout).await?;
        Ok(messages.iter().zip(outcomes).map(|(message, it)| message.settled(it)).collect())
    }

    /// Prolongs a lease to `duration` from now, by default the queue's visibility timeout.
    ///
    /// Returns its new end. Fails as [`ack`](Self::ack) does.
    pub async fn extend(
        &self,
        queue: &str,
        message_id: &str,
        lease_token: Option<&str>,
        duration: Option<Duration>,
    ) -> Result<SystemTime> {
        let lease_token = lease_token.unwrap_or_default();
        let item = || proto::LeaseExtension {
            queue: queue.to_owned(),
            message_id: message_id.to_owned(),
            lease_token: lease_token.to_owned(),
            extend_ms: duration.map_or(0, as_ms),
        };
        let is_repeatable = !lease_token.is_empty();
        let end = self.shared.extensions.call(item, is_repeatable, self.timeout).await;
        end.and_then(end_of_lease).map_err(|error| error.about(Some(queue), Some(message_id)))
    }

    /// Prolongs the leases of many messages to `duration` from now, by default each queue's
    /// visibility timeout; the new end of each, in order. The call itself fails only when the
    /// client is closed.
    pub async fn extend_many<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a ConsumeMessage>,
        duration: Option<Duration>,
    ) -> Result<Vec<Result<SystemTime>>> {
        let _promise = self.shared.connection.promises.give()?;
        let item = |message: &ConsumeMessage| proto::LeaseExtension {
            queue: message.queue.clone(),
            message_id: message.id.clone(),
            lease_token: message.lease_token.clone(),
            extend_ms: duration.map_or(0, as_ms),
        };
        let items: Vec<_> = messages.into_iter().map(item).collect();
        let Shared { connection, .. } = &*self.shared;
        let ends = send_many::<Extend>(connection, items.into_iter(), self.timeout).await?;
        Ok(ends.into_iter().map(|end| end.and_then(end_of_lease)).collect())
    }
}

fn end_of_lease(end: Option<SystemTime>) -> Result<SystemTime> {
    end.ok_or_else(|| Error::internal("the broker did not say when the lease ends"))
}

impl fmt::Debug for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Client")
            .field("target", &self.shared.connection.target)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

// SPDX-License-Identifier: AGPL-3.0-only
//! The RPCs that take many items and answer each on its own, and calls that need several of them.
//!
//! A call that is too large for one request is split, sent one request after the other, and put
//! together again. Never two requests at once, so that messages are stored in the order of the
//! list; and nothing is sent after a request that failed as a whole.

use std::future::Future;
use std::time::{Duration, SystemTime};

use prost::Message;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::connection::{Connection, Service, deadline_after};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Enqueued, moment};
use crate::pipeline::{Piped, carry};
use crate::proto;
use crate::tracing::Trace;

// A batch holds the broker's engine: a thousand messages for some 15 ms, which others wait behind.
pub(crate) const BATCH_ITEMS_MAX: usize = 1_000;
// Below gRPC's customary 4 MiB, so that any broker takes it. A larger message travels alone.
pub(crate) const BATCH_BYTES_MAX: usize = 1024 * 1024;

pub(crate) type Answers<T> = Vec<Result<T, proto::ItemError>>;

/// One batch RPC.
pub(crate) trait Batch: 'static {
    type Item: Message + Clone + 'static;
    type Request: Message;
    type Response;
    type Output: Send + 'static;

    fn request(items: Vec<Self::Item>) -> Self::Request;

    fn send(
        service: Service,
        request: Request<Self::Request>,
    ) -> impl Future<Output = Result<Response<Self::Response>, Status>> + Send;

    fn read(response: Self::Response) -> Answers<Self::Output>;

    /// The queue, and the message where the item names one: what an error should name.
    fn subject(item: &Self::Item) -> (&str, Option<&str>);

    /// Whether an item may be sent again after a failure that leaves open if it was applied.
    fn is_repeatable(_item: &Self::Item) -> bool {
        false
    }

    /// What an item's error means where the item had been sent before, and may have been done.
    fn after_repeat(error: Error) -> Result<Self::Output> {
        Err(error)
    }

    /// Sends the items of concurrent callers, as [`send_batch`] does.
    fn send_together(
        connection: &Connection,
        items: Vec<Self::Item>,
        deadline: Instant,
        trace: &Trace,
    ) -> impl Future<Output = Result<Vec<Result<Self::Output>>>> + Send
    where
        Self: Piped + Sized,
    {
        send_batch::<Self>(connection, items, deadline, trace)
    }
}

pub(crate) struct Enqueue;
pub(crate) struct Nack;
pub(crate) struct Extend;

impl Batch for Enqueue {
    type Item = proto::EnqueueRequest;
    type Request = proto::EnqueueBatchRequest;
    type Response = proto::EnqueueBatchResponse;
    type Output = Enqueued;

    fn request(messages: Vec<Self::Item>) -> Self::Request {
        proto::EnqueueBatchRequest { messages }
    }

    async fn send(
        mut service: Service,
        request: Request<Self::Request>,
    ) -> Result<Response<Self::Response>, Status> {
        service.enqueue_batch(request).await
    }

    fn read(response: Self::Response) -> Answers<Enqueued> {
        let read = |result: proto::EnqueueResult| match result.error {
            Some(error) => Err(error),
            None => Ok(Enqueued { message_id: result.message_id, duplicate: result.duplicate }),
        };
        response.results.into_iter().map(read).collect()
    }

    fn subject(item: &Self::Item) -> (&str, Option<&str>) {
        (&item.queue, None)
    }

    fn is_repeatable(item: &Self::Item) -> bool {
        !item.idempotency_key.is_empty()
    }
}

impl Batch for Nack {
    type Item = proto::NackRequest;
    type Request = proto::NackBatchRequest;
    type Response = proto::NackBatchResponse;
    type Output = ();

    fn request(nacks: Vec<Self::Item>) -> Self::Request {
        proto::NackBatchRequest { nacks }
    }

    async fn send(
        mut service: Service,
        request: Request<Self::Request>,
    ) -> Result<Response<Self::Response>, Status> {
        service.nack_batch(request).await
    }

    fn read(response: Self::Response) -> Answers<()> {
        settled(response.results)
    }

    fn subject(item: &Self::Item) -> (&str, Option<&str>) {
        (&item.queue, Some(&item.message_id))
    }

    fn is_repeatable(item: &Self::Item) -> bool {
        !item.lease_token.is_empty()
    }

    fn after_repeat(error: Error) -> Result<()> {
        // The delivery is over, and with it the message if that was its last one.
        let is_done = matches!(error.kind(), ErrorKind::MessageNotFound | ErrorKind::LeaseExpired);
        if is_done { Ok(()) } else { Err(error) }
    }
}

impl Batch for Extend {
    type Item = proto::LeaseExtension;
    type Request = proto::ExtendLeaseRequest;
    type Response = proto::ExtendLeaseResponse;
    type Output = Option<SystemTime>;

    fn request(extensions: Vec<Self::Item>) -> Self::Request {
        proto::ExtendLeaseRequest { extensions }
    }

    async fn send(
        mut service: Service,
        request: Request<Self::Request>,
    ) -> Result<Response<Self::Response>, Status> {
        service.extend_lease(request).await
    }

    fn read(response: Self::Response) -> Answers<Option<SystemTime>> {
        let read = |result: proto::ExtendLeaseResult| match result.error {
            Some(error) => Err(error),
            None => Ok(moment(result.lease_expires_at)),
        };
        response.results.into_iter().map(read).collect()
    }

    fn subject(item: &Self::Item) -> (&str, Option<&str>) {
        (&item.queue, Some(&item.message_id))
    }

    fn is_repeatable(item: &Self::Item) -> bool {
        !item.lease_token.is_empty()
    }
}

pub(crate) fn settled(results: Vec<proto::ItemResult>) -> Answers<()> {
    results.into_iter().map(|result| result.error.map_or(Ok(()), Err)).collect()
}

/// Sends one request. One outcome per item in order, or the failure of all of them; neither names
/// what it is about.
pub(crate) async fn send_batch<B: Piped>(
    connection: &Connection,
    items: Vec<B::Item>,
    deadline: Instant,
    trace: &Trace,
) -> Result<Vec<Result<B::Output>>> {
    let count = items.len();
    let answers = carry::<B>(connection, B::request(items), deadline, trace).await?;
    if answers.len() != count {
        let given = answers.len();
        return Err(Error::internal(&format!("the broker gave {given} results for {count} items")));
    }
    let typed = |answer: Result<B::Output, proto::ItemError>| {
        answer.map_err(|item| Error::from_item(&item, &connection.redacted(&item.message)))
    };
    Ok(answers.into_iter().map(typed).collect())
}

/// Sends all items, each request with a deadline of its own; one outcome for each item, in order.
pub(crate) async fn send_many<B: Piped>(
    connection: &Connection,
    items: impl Iterator<Item = B::Item>,
    timeout: Duration,
) -> Result<Vec<Result<B::Output>>> {
    send_many_or_again::<B>(connection, items, timeout, false).await
}

/// [`send_many`], of items that may have been done before.
pub(crate) async fn send_many_or_again<B: Piped>(
    connection: &Connection,
    items: impl Iterator<Item = B::Item>,
    timeout: Duration,
    is_repeat: bool,
) -> Result<Vec<Result<B::Output>>> {
    connection.check_alive()?;
    let mut items = items.peekable();
    let mut outcomes = Vec::new();
    let mut failure: Option<Error> = None;
    while let Some(batch) = next_batch(&mut items) {
        let subjects: Vec<_> = batch.iter().map(subject_of::<B>).collect();
        let answers = match &failure {
            Some(error) => Err(error.clone()),
            None => {
                let deadline = deadline_after(timeout);
                send_once_or_again::<B>(connection, batch, deadline, is_repeat).await.0
            }
        };
        let about = |error: Error, (queue, message_id): &Subject| {
            error.about(Some(queue), message_id.as_deref())
        };
        match answers {
            Ok(answers) => outcomes.extend(
                answers
                    .into_iter()
                    .zip(&subjects)
                    .map(|(answer, subject)| answer.map_err(|error| about(error, subject))),
            ),
            Err(error) => {
                let all = subjects.iter().map(|subject| Err(about(error.clone(), subject)));
                outcomes.extend(all);
                failure.get_or_insert_with(|| not_sent(&error));
            }
        }
    }
    Ok(outcomes)
}

/// Sends all items, and fails as the first request did that failed as a whole. Says whether a
/// request was sent more than once.
pub(crate) async fn send_or_fail<B: Piped>(
    connection: &Connection,
    items: Vec<B::Item>,
    timeout: Duration,
) -> (Result<Vec<Result<B::Output>>>, bool) {
    let mut items = items.into_iter().peekable();
    let (mut outcomes, mut is_repeat) = (Vec::new(), false);
    while let Some(batch) = next_batch(&mut items) {
        let deadline = deadline_after(timeout);
        let (answers, was_sent_again) =
            send_once_or_again::<B>(connection, batch, deadline, false).await;
        is_repeat |= was_sent_again;
        match answers {
            Ok(answers) => outcomes.extend(answers),
            Err(error) => return (Err(error), is_repeat),
        }
    }
    (Ok(outcomes), is_repeat)
}

type Subject = (String, Option<String>);

fn subject_of<B: Batch>(item: &B::Item) -> Subject {
    let (queue, message_id) = B::subject(item);
    (queue.to_owned(), message_id.map(str::to_owned))
}

fn not_sent(error: &Error) -> Error {
    let text = format!("not sent, because an earlier request of this call failed: {error}");
    error.clone().with_text(text)
}

/// Sends one request, and again while the broker is away if that is harmless. Also says whether it
/// was sent more than once.
async fn send_once_or_again<B: Piped>(
    connection: &Connection,
    batch: Vec<B::Item>,
    deadline: Instant,
    is_repeat: bool,
) -> (Result<Vec<Result<B::Output>>>, bool) {
    let trace = Trace::current();
    let (answers, was_sent_again) = if batch.iter().all(B::is_repeatable) {
        let send = || send_batch::<B>(connection, batch.clone(), deadline, &trace);
        connection.retrying(deadline, send).await
    } else {
        (send_batch::<B>(connection, batch, deadline, &trace).await, false)
    };
    if !is_repeat && !was_sent_again {
        return (answers, false);
    }
    let meant = |answer: Result<B::Output>| answer.or_else(B::after_repeat);
    (answers.map(|answers| answers.into_iter().map(meant).collect()), was_sent_again)
}

/// The next items that fit into one request; none when there are no more.
fn next_batch<T: Message>(
    items: &mut std::iter::Peekable<impl Iterator<Item = T>>,
) -> Option<Vec<T>> {
    let first = items.next()?;
    let mut size = first.encoded_len();
    let mut batch = vec![first];
    while batch.len() < BATCH_ITEMS_MAX {
        let fits = |item: &T| {
            size += item.encoded_len();
            size <= BATCH_BYTES_MAX
        };
        match items.next_if(fits) {
            Some(item) => batch.push(item),
            None => break,
        }
    }
    Some(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(payload_bytes: usize) -> proto::EnqueueRequest {
        proto::EnqueueRequest { payload: vec![0; payload_bytes].into(), ..Default::default() }
    }

    fn sizes(items: Vec<proto::EnqueueRequest>) -> Vec<usize> {
        let mut items = items.into_iter().peekable();
        std::iter::from_fn(|| next_batch(&mut items)).map(|batch| batch.len()).collect()
    }

    #[test]
    fn batches_are_split_by_count() {
        assert_eq!(sizes(vec![item(1); 2_500]), [1_000, 1_000, 500]);
        assert_eq!(sizes(Vec::new()), [0; 0]);
    }

    #[test]
    fn batches_are_split_by_bytes() {
        assert_eq!(sizes(vec![item(400_000); 5]), [2, 2, 1]);
    }

    #[test]
    fn a_message_larger_than_a_batch_travels_alone() {
        assert_eq!(sizes(vec![item(1), item(BATCH_BYTES_MAX), item(1)]), [1, 1, 1]);
    }
}

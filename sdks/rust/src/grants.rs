// SPDX-License-Identifier: AGPL-3.0-only
//! Whole frames: what is acked together, and came together, travels as one settlement of a grant.
//!
//! A grant is what one delivery frame leases; its messages share a lease token. Acks of all of them
//! are the same as one settlement that expects exactly so many. Where the broker refuses that,
//! since some were settled before or their leases ended, each goes as an ack of its own and gets
//! its own answer. So nobody can tell the two ways apart, but for what they cost.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::batch::{self, Answers, Batch, send_batch, send_many, send_many_or_again, send_or_fail};
use crate::client::Client;
use crate::connection::{Connection, Service};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Nack, as_ms, moment};
use crate::proto;
use crate::proto::grant_settlement::Action;
use crate::tracing::Trace;

/// How many messages were settled, and when extended leases end.
pub(crate) struct Settled {
    messages: u32,
    lease_expires_at: Option<SystemTime>,
}

pub(crate) struct Settle;

impl Batch for Settle {
    type Item = proto::GrantSettlement;
    type Request = proto::SettleGrantsRequest;
    type Response = proto::SettleGrantsResponse;
    type Output = Settled;

    fn request(settlements: Vec<Self::Item>) -> Self::Request {
        proto::SettleGrantsRequest { settlements }
    }

    async fn send(
        mut service: Service,
        request: Request<Self::Request>,
    ) -> Result<Response<Self::Response>, Status> {
        service.settle_grants(request).await
    }

    fn read(response: Self::Response) -> Answers<Settled> {
        let read = |result: proto::GrantResult| match result.error {
            Some(error) => Err(error),
            None => Ok(Settled {
                messages: result.messages,
                lease_expires_at: moment(result.lease_expires_at),
            }),
        };
        response.results.into_iter().map(read).collect()
    }

    fn subject(item: &Self::Item) -> (&str, Option<&str>) {
        (&item.queue, None)
    }

    /// An extension, or the acks of a whole frame: where those were done, the repeat finds nothing
    /// to settle, and each ack is then sent by itself and finds its message gone.
    fn is_repeatable(item: &Self::Item) -> bool {
        match &item.action {
            Some(Action::Extend(_)) => true,
            Some(Action::Ack(_)) => item.expected_messages > 0,
            _ => false,
        }
    }
}

impl Client {
    /// Acks what is left of a grant, but for some ids: all messages that were delivered under one
    /// lease token.
    ///
    /// Returns how many were acked. Fails with `LeaseExpired` when none is left of it.
    pub async fn ack_grant(
        &self,
        queue: &str,
        lease_token: &str,
        except_message_ids: &[String],
    ) -> Result<u32> {
        let action = Action::Ack(proto::GrantAck {});
        Ok(self.settle_grant(queue, lease_token, except_message_ids, action).await?.messages)
    }

    /// Nacks what is left of a grant, but for some ids, each message as [`nack`](Self::nack) would;
    /// returns how many. With a [`Nack::retry_after`] of zero they are given back unseen.
    ///
    /// Fails as [`ack_grant`](Self::ack_grant) does.
    pub async fn nack_grant(
        &self,
        queue: &str,
        lease_token: &str,
        nack: impl Into<Nack>,
        except_message_ids: &[String],
    ) -> Result<u32> {
        let nack = nack.into();
        let action = Action::Nack(proto::GrantNack {
            error: nack.error,
            retry_after_ms: nack.retry_after.map(as_ms),
            throttle_key: nack.throttle_key.unwrap_or_default(),
            dead_letter: nack.dead_letter,
        });
        Ok(self.settle_grant(queue, lease_token, except_message_ids, action).await?.messages)
    }

    /// Prolongs what is left of a grant, but for some ids, to `duration` from now, by default the
    /// queue's visibility timeout; returns its new end.
    ///
    /// Fails as [`ack_grant`](Self::ack_grant) does.
    pub async fn extend_grant(
        &self,
        queue: &str,
        lease_token: &str,
        duration: Option<Duration>,
        except_message_ids: &[String],
    ) -> Result<SystemTime> {
        let extend_ms = duration.map_or(0, as_ms);
        let action = Action::Extend(proto::GrantExtension { extend_ms });
        let settled = self.settle_grant(queue, lease_token, except_message_ids, action).await?;
        settled
            .lease_expires_at
            .ok_or_else(|| Error::internal("the broker did not say when the leases end"))
    }

    async fn settle_grant(
        &self,
        queue: &str,
        lease_token: &str,
        except_message_ids: &[String],
        action: Action,
    ) -> Result<Settled> {
        let item = proto::GrantSettlement {
            queue: queue.to_owned(),
            lease_token: lease_token.to_owned(),
            except_message_ids: except_message_ids.to_vec(),
            expected_messages: 0,
            action: Some(action),
        };
        let _promise = self.connection().promises.give()?;
        let items = std::iter::once(item);
        let mut outcomes = send_many::<Settle>(self.connection(), items, self.timeout()).await?;
        outcomes.pop().unwrap_or_else(|| Err(Error::internal("the broker gave no result")))
    }
}

// --- Frames --------------------------------------------------------------------------------------

/// An ack, and how many messages came together with its own; 0 if nobody knows. A message of its
/// own only so that it has a size; what is sent is the request in it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AckItem {
    #[prost(message, required, tag = "1")]
    pub(crate) request: proto::AckRequest,
    #[prost(uint64, tag = "2")]
    pub(crate) frame_size: u64,
}

pub(crate) struct Ack;

impl Batch for Ack {
    type Item = AckItem;
    type Request = proto::AckBatchRequest;
    type Response = proto::AckBatchResponse;
    type Output = ();

    fn request(items: Vec<Self::Item>) -> Self::Request {
        proto::AckBatchRequest { acks: items.into_iter().map(|item| item.request).collect() }
    }

    async fn send(
        mut service: Service,
        request: Request<Self::Request>,
    ) -> Result<Response<Self::Response>, Status> {
        service.ack_batch(request).await
    }

    fn read(response: Self::Response) -> Answers<()> {
        batch::settled(response.results)
    }

    fn subject(item: &Self::Item) -> (&str, Option<&str>) {
        (&item.request.queue, Some(&item.request.message_id))
    }

    fn is_repeatable(item: &Self::Item) -> bool {
        !item.request.lease_token.is_empty()
    }

    fn after_repeat(error: Error) -> Result<()> {
        // It is gone, as it should be.
        if error.kind() == ErrorKind::MessageNotFound { Ok(()) } else { Err(error) }
    }

    /// Whole frames by their grants, and then what is left.
    async fn send_together(
        connection: &Connection,
        items: Vec<Self::Item>,
        deadline: Instant,
        trace: &Trace,
    ) -> Result<Vec<Result<()>>> {
        let plan = Plan::new(connection, items);
        if plan.frames.is_empty() {
            return send_batch::<Self>(connection, plan.items, deadline, trace).await;
        }
        let answers = send_batch::<Settle>(connection, plan.grants(), deadline, trace).await;
        let mut found = plan.found(connection, answers)?;
        let rest = plan.rest(&found);
        if !rest.is_empty() {
            let count = rest.len();
            let answers = send_batch::<Self>(connection, rest, deadline, trace).await;
            // Frames were settled before: what this request fails with is that of its own acks.
            fill(&mut found, answers.unwrap_or_else(|error| vec![Err(error); count]));
        }
        Ok(found.into_iter().flatten().collect())
    }
}

/// Acks any number of messages, whole frames of them by their grants; one outcome for each.
pub(crate) async fn ack_many(
    connection: &Connection,
    items: Vec<AckItem>,
    timeout: Duration,
) -> Result<Vec<Result<()>>> {
    let plan = Plan::new(connection, items);
    let (answers, is_repeat) = send_or_fail::<Settle>(connection, plan.grants(), timeout).await;
    let mut found = match plan.found(connection, answers) {
        Ok(found) => found,
        Err(error) => {
            let about = |item: &AckItem| {
                let request = &item.request;
                Err(error.clone().about(Some(&request.queue), Some(&request.message_id)))
            };
            return Ok(plan.items.iter().map(about).collect());
        }
    };
    let rest = plan.rest(&found).into_iter();
    let outcomes = send_many_or_again::<Ack>(connection, rest, timeout, is_repeat).await?;
    fill(&mut found, outcomes);
    Ok(found.into_iter().flatten().collect())
}

/// Puts outcomes where there are none yet.
fn fill(found: &mut [Option<Result<()>>], outcomes: Vec<Result<()>>) {
    let open = found.iter_mut().filter(|outcome| outcome.is_none());
    for (place, outcome) in open.zip(outcomes) {
        *place = Some(outcome);
    }
}

/// Acks, and where the whole frames among them are.
struct Plan {
    items: Vec<AckItem>,
    frames: Vec<Vec<usize>>,
}

impl Plan {
    fn new(connection: &Connection, items: Vec<AckItem>) -> Self {
        let frames = if connection.has_grants() { whole_frames(&items) } else { Vec::new() };
        Self { items, frames }
    }

    fn grants(&self) -> Vec<proto::GrantSettlement> {
        let grant = |places: &Vec<usize>| {
            let first = &self.items[places[0]].request;
            proto::GrantSettlement {
                queue: first.queue.clone(),
                lease_token: first.lease_token.clone(),
                except_message_ids: Vec::new(),
                expected_messages: u32::try_from(places.len()).unwrap_or(u32::MAX),
                action: Some(Action::Ack(proto::GrantAck {})),
            }
        };
        self.frames.iter().map(grant).collect()
    }

    /// What became of each ack; none where it is to be sent by itself. Fails as the request did.
    fn found(
        &self,
        connection: &Connection,
        answers: Result<Vec<Result<Settled>>>,
    ) -> Result<Vec<Option<Result<()>>>> {
        let mut found: Vec<Option<Result<()>>> = vec![None; self.items.len()];
        let answers = match answers {
            Err(error) if error.kind() == ErrorKind::Unimplemented => {
                connection.forget_grants();
                return Ok(found);
            }
            answers => answers?,
        };
        for (places, answer) in self.frames.iter().zip(answers) {
            let outcome = match answer {
                Err(error) if error.kind() == ErrorKind::LeaseExpired => continue,
                answer => answer.map(|_| ()),
            };
            for &at in places {
                let request = &self.items[at].request;
                let about =
                    |error: Error| error.about(Some(&request.queue), Some(&request.message_id));
                found[at] = Some(outcome.clone().map_err(about));
            }
        }
        Ok(found)
    }

    fn rest(&self, found: &[Option<Result<()>>]) -> Vec<AckItem> {
        let open = self.items.iter().zip(found).filter(|(_, outcome)| outcome.is_none());
        open.map(|(item, _)| item.clone()).collect()
    }
}

/// Where the acks are that make up whole frames, frame by frame.
fn whole_frames(items: &[AckItem]) -> Vec<Vec<usize>> {
    let mut order = Vec::new();
    let mut frames: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    for (at, AckItem { request, frame_size }) in items.iter().enumerate() {
        if *frame_size > 1 && !request.lease_token.is_empty() {
            let key = (request.queue.as_str(), request.lease_token.as_str());
            let places = frames.entry(key).or_default();
            if places.is_empty() {
                order.push(key);
            }
            places.push(at);
        }
    }
    let in_order = order.into_iter().filter_map(|key| frames.remove(&key));
    in_order.filter(|places| is_whole(items, places)).collect()
}

fn is_whole(items: &[AckItem], places: &[usize]) -> bool {
    let ids: HashSet<_> = places.iter().map(|&at| &items[at].request.message_id).collect();
    ids.len() == places.len() && items[places[0]].frame_size == places.len() as u64
}

// SPDX-License-Identifier: AGPL-3.0-only
//! A request on its way in: within its size, within the budget, within its time.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::Incoming;
use tokio::time::{sleep, timeout};

use crate::budget::Charge;
use crate::calls::Call;
use crate::framing::{Messages, Prefix};
use crate::inflate::Encoding;
use crate::state::State;
use crate::status::{Status, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED};

/// How soon a message of a call that brings many looks again whether there is room for it.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub struct Requests {
    messages: Messages<Incoming>,
    encoding: Encoding,
    most: usize,
    too_large: fn(usize, usize) -> Status,
}

/// The refusal of a request that may be as large as `limits.max_request_bytes`.
pub fn giant(size: usize, most: usize) -> Status {
    Status::new(RESOURCE_EXHAUSTED, format!("a request of {size} bytes exceeds {most}"), "")
}

/// The refusal of one that has a few words to say.
pub fn wordy(size: usize, most: usize) -> Status {
    let text = format!("a request of {size} bytes exceeds {most}");
    Status::new(INVALID_ARGUMENT, text, "MESSAGE_TOO_LARGE")
}

impl Requests {
    /// Fails if the requests are encoded in a way that nobody here knows.
    pub fn new(
        headers: &HeaderMap,
        body: Incoming,
        most: usize,
        too_large: fn(usize, usize) -> Status,
    ) -> Result<Self, Status> {
        let header = headers.get("grpc-encoding").map_or(&b"identity"[..], |it| it.as_bytes());
        let encoding = Encoding::named(header).ok_or_else(|| {
            let name = String::from_utf8_lossy(header);
            Status::new(UNIMPLEMENTED, format!("grpc-encoding \"{name}\" is not known"), "")
        })?;
        Ok(Self { messages: Messages::new(body), encoding, most, too_large })
    }

    /// Return the one request of a call, or None if there is none. It is not charged: it is small.
    pub async fn only(&mut self, state: &State) -> Result<Option<Bytes>, Status> {
        match self.announced(state).await? {
            None => Ok(None),
            Some(prefix) => self.read(state, &prefix, |_| Ok(())).await.map(Some),
        }
    }

    /// Return the first request of a call, and its charge; or None if there is none.
    pub async fn first(&mut self, state: &State) -> Result<Option<(Bytes, Charge)>, Status> {
        let Some(prefix) = self.announced(state).await? else { return Ok(None) };
        self.charged(state, &prefix).await.map(Some)
    }

    /// Return the next request of a call that may bring many, and takes its time for it.
    pub async fn next(
        &mut self,
        state: &State,
        call: &Call,
    ) -> Result<Option<(Bytes, Charge)>, Status> {
        let Some(prefix) = self.messages.prefix().await? else { return Ok(None) };
        self.check(&prefix)?;
        call.credit().await;
        // What waits here waits with the client, and costs a window: there is no need to refuse it.
        while state.budget.is_full(prefix.size) {
            sleep(LOOK_AGAIN).await;
        }
        self.charged(state, &prefix).await.map(Some)
    }

    /// Return the next request of a call that the edge answers by itself.
    pub async fn next_small(&mut self, state: &State) -> Result<Option<Bytes>, Status> {
        let Some(prefix) = self.messages.prefix().await? else { return Ok(None) };
        self.check(&prefix)?;
        self.read(state, &prefix, |_| Ok(())).await.map(Some)
    }

    async fn announced(&mut self, state: &State) -> Result<Option<Prefix>, Status> {
        let prefix = in_time(state.settings.arrival_timeout, self.messages.prefix()).await?;
        if let Some(prefix) = &prefix {
            self.check(prefix)?;
        }
        Ok(prefix)
    }

    fn check(&self, prefix: &Prefix) -> Result<(), Status> {
        if prefix.size > self.most {
            return Err((self.too_large)(prefix.size, self.most));
        }
        Ok(())
    }

    async fn charged(&mut self, state: &State, prefix: &Prefix) -> Result<(Bytes, Charge), Status> {
        let mut charge = state.budget.charge(prefix.size).await?;
        // While it is inflated, and not when it has been: many at once would take up any memory.
        let body = self.read(state, prefix, |size| state.budget.grow(&mut charge, size)).await?;
        Ok((body, charge))
    }

    /// `grown` hears of every step by which a compressed request gets larger.
    async fn read(
        &mut self,
        state: &State,
        prefix: &Prefix,
        mut grown: impl FnMut(usize) -> Result<(), Status>,
    ) -> Result<Bytes, Status> {
        let body = self.messages.message(prefix.size);
        let body = in_time(state.settings.arrival_timeout, body).await?;
        if !prefix.is_compressed {
            return Ok(body);
        }
        let inflating = self.encoding.inflated(&body, |size| match size > self.most {
            true => Err((self.too_large)(size, self.most)),
            false => grown(size),
        });
        inflating.await
    }
}

async fn in_time<T>(
    limit: Duration,
    arrival: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    timeout(limit, arrival).await.unwrap_or_else(|_| {
        let seconds = limit.as_secs_f64();
        Err(Status::overloaded(format!("the request took longer than {seconds} s to arrive")))
    })
}

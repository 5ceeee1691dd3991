// SPDX-License-Identifier: AGPL-3.0-only
//! A request on its way in: within its size, within the budget, within its time. One that holds
//! room which others want has to keep coming, or it is cut.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::Incoming;
use tokio::sync::SemaphorePermit;
use tokio::time::{sleep, timeout, timeout_at, Instant};

use crate::budget::{Budget, Charge, LARGE_BYTES};
use crate::calls::Call;
use crate::framing::{Messages, Prefix};
use crate::inflate::Encoding;
use crate::state::State;
use crate::status::{Status, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED};

/// How soon a message of a call that brings many looks again whether there is room for it.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// What has to come of a request while others want room, and in which time: half a megabit a second
/// is a slow mobile phone.
const PACE_BYTES: usize = 64 * 1024;
const PACE: Duration = Duration::from_secs(1);
/// For how long nothing at all may come while its own connection wants room.
const SILENCES: u32 = 5;

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
            Some(prefix) => self.small(state, &prefix).await.map(Some),
        }
    }

    /// Return the first request of a call, and its charge; or None if there is none.
    pub async fn first(
        &mut self,
        state: &State,
        peer: u64,
    ) -> Result<Option<(Bytes, Charge)>, Status> {
        let Some(prefix) = self.announced(state).await? else { return Ok(None) };
        self.charged(state, &prefix, peer, false).await.map(Some)
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
        while prefix.size < LARGE_BYTES && state.budget.is_full(prefix.size, call.peer()) {
            sleep(LOOK_AGAIN).await;
        }
        self.charged(state, &prefix, call.peer(), true).await.map(Some)
    }

    /// Return the next request of a call that the edge answers by itself.
    pub async fn next_small(&mut self, state: &State) -> Result<Option<Bytes>, Status> {
        let Some(prefix) = self.messages.prefix().await? else { return Ok(None) };
        self.check(&prefix)?;
        self.small(state, &prefix).await.map(Some)
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

    /// Read a request that has a few words to say, and is not charged.
    async fn small(&mut self, state: &State, prefix: &Prefix) -> Result<Bytes, Status> {
        let mut body = Vec::new();
        let limit = state.settings.arrival_timeout;
        let coming = async {
            while body.len() < prefix.size {
                self.messages.part(&mut body, prefix.size).await?;
            }
            Ok(())
        };
        in_time(limit, coming).await?;
        self.inflated(prefix, body, |_| Ok(())).await
    }

    /// Read a request and charge it. One that `waits` does so for room; others are refused.
    async fn charged(
        &mut self,
        state: &State,
        prefix: &Prefix,
        peer: u64,
        waits: bool,
    ) -> Result<(Bytes, Charge), Status> {
        let budget = &state.budget;
        let mut charge = match prefix.size {
            LARGE_BYTES.. => loop {
                match budget.claim(prefix.size, peer).await {
                    Err(_) if waits => sleep(LOOK_AGAIN).await, // the line is full
                    claimed => break claimed?,
                }
            },
            _ => budget.nothing(peer),
        };
        let limit = state.settings.arrival_timeout;
        let deadline = Instant::now() + limit;
        let mut finishing = None;
        let mut body = Vec::with_capacity(charge.size());
        let mut pace = Pace::new(0);
        while body.len() < prefix.size {
            let coming = self.messages.part(&mut body, prefix.size);
            if let Ok(part) = timeout_at(deadline.min(pace.ends), coming).await {
                part?;
                if let Err(status) = budget.grow(&mut charge, body.len()) {
                    if !waits {
                        return Err(status);
                    }
                    finishing = Some(finish(budget, &mut charge, body.len(), prefix.size).await);
                    pace = Pace::new(body.len());
                }
            } else if Instant::now() >= deadline {
                return Err(late(limit));
            }
            pace.check(body.len(), prefix.size, budget, peer)?;
        }
        drop(finishing);
        // While it is inflated, and not when it has been: many at once would take up any memory.
        let body = self.inflated(prefix, body, |size| budget.grow(&mut charge, size)).await?;
        Ok((body, charge))
    }

    /// `grown` hears of every step by which a compressed request gets larger.
    async fn inflated(
        &self,
        prefix: &Prefix,
        body: Vec<u8>,
        mut grown: impl FnMut(usize) -> Result<(), Status>,
    ) -> Result<Bytes, Status> {
        if !prefix.is_compressed {
            return Ok(body.into());
        }
        let inflating = self.encoding.inflated(&body, |size| match size > self.most {
            true => Err((self.too_large)(size, self.most)),
            false => grown(size),
        });
        inflating.await
    }
}

/// Wait for room for a request that has begun, as those before it do. Whose turn it is takes all of
/// its room at once, for somebody has to get to an end.
async fn finish<'a>(
    budget: &'a Budget,
    charge: &mut Charge,
    have: usize,
    size: usize,
) -> Option<SemaphorePermit<'a>> {
    let mut coming = pin!(budget.finishing.acquire());
    loop {
        let turn = timeout(LOOK_AGAIN, coming.as_mut()).await;
        // Asking says that room is wanted, too: whoever holds some and brings nothing is cut then.
        if budget.grow(charge, have).is_ok() {
            return None;
        }
        if let Ok(turn) = turn {
            budget.overdraw(charge, size);
            return turn.ok(); // it is never closed
        }
    }
}

/// How much of a request has come lately.
struct Pace {
    had: usize,
    ends: Instant,
    silent: u32, // for so many times nothing came
}

impl Pace {
    fn new(had: usize) -> Self {
        Self { had, ends: Instant::now() + PACE, silent: 0 }
    }

    /// Fail if too little came in the time that is over now, and others want the room. What the
    /// same connection wants counts only where nothing comes at all: its bodies share one cable.
    fn check(
        &mut self,
        have: usize,
        size: usize,
        budget: &Budget,
        peer: u64,
    ) -> Result<(), Status> {
        if have == size || Instant::now() < self.ends {
            return Ok(());
        }
        let came = have - self.had;
        if came < PACE_BYTES && budget.is_wanted(peer) {
            return Err(Status::overloaded(format!(
                "{came} bytes of the request came in a second, and others wait for room; \
                 try again later"
            )));
        }
        let silent = if came == 0 { self.silent + 1 } else { 0 };
        if silent >= SILENCES && budget.is_short() {
            return Err(Status::overloaded(format!(
                "nothing of the request came in {silent} seconds, and others of its connection \
                 wait for room; try again later"
            )));
        }
        *self = Self { silent, ..Self::new(have) };
        Ok(())
    }
}

async fn in_time<T>(
    limit: Duration,
    arrival: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    timeout(limit, arrival).await.unwrap_or_else(|_| Err(late(limit)))
}

fn late(limit: Duration) -> Status {
    let seconds = limit.as_secs_f64();
    Status::overloaded(format!("the request took longer than {seconds} s to arrive"))
}

// SPDX-License-Identifier: AGPL-3.0-only
//! Throttle keys: what they let through, and the operator's hand on them.

use std::time::{Duration, SystemTime};

use crate::client::Client;
use crate::connection::Admin;
use crate::error::Result;
use crate::message::{as_ms, moment};
use crate::proto;

/// One throttle key: its token bucket and its concurrency limit.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleKeyStats {
    /// The throttle key.
    pub key: String,
    /// Tokens in the bucket now.
    pub tokens: f64,
    /// Tokens added per second; 0 when there is no rate limit.
    pub rate_per_second: f64,
    /// The most tokens the bucket holds.
    pub burst: f64,
    /// Deliveries that took tokens since the broker started.
    pub passed: u64,
    /// Times a lane was parked because the bucket was empty or the limit reached.
    pub blocked: u64,
    /// Most leased messages with this key at a time; 0 when there is no limit.
    pub concurrency_limit: u32,
    /// Leased messages with this key now.
    pub in_flight: u32,
    /// Nothing passes before this time: a consumer reported backpressure, or an operator said so.
    pub paused_until: Option<SystemTime>,
    /// Waiting messages with this key.
    pub waiting: u64,
    /// Deliveries per second that took tokens, of late.
    pub passed_per_second: f64,
    /// Times per second that a lane was parked, of late.
    pub blocked_per_second: f64,
    /// The pattern whose setting applies; empty for a setting of its own, or none.
    pub pattern: String,
    /// True for a key in use that nobody configured.
    pub unset: bool,
    /// True while an operator has paused the key.
    pub paused: bool,
}

impl From<proto::PerThrottleKeyStats> for ThrottleKeyStats {
    fn from(raw: proto::PerThrottleKeyStats) -> Self {
        Self {
            key: raw.key,
            tokens: raw.tokens,
            rate_per_second: raw.rate_per_second,
            burst: raw.burst,
            passed: raw.passed,
            blocked: raw.blocked,
            concurrency_limit: raw.concurrency_limit,
            in_flight: raw.in_flight,
            paused_until: moment(raw.paused_until),
            waiting: raw.waiting,
            passed_per_second: raw.passed_per_second,
            blocked_per_second: raw.blocked_per_second,
            pattern: raw.pattern,
            unset: raw.unset,
            paused: raw.paused,
        }
    }
}

/// Which throttle keys [`Client::list_throttles`] shows; all of them unless narrowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThrottleFilter {
    /// Only keys that start with this.
    pub prefix: String,
    /// Only keys in use that nobody configured.
    pub unset: bool,
    /// The most keys to return; 1000 unless set.
    pub limit: Option<u32>,
}

/// Some throttle keys, by key.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottlePage {
    /// One row per key.
    pub throttles: Vec<ThrottleKeyStats>,
    /// How many there are, those beyond the limit included.
    pub total_count: u64,
}

impl Client {
    /// Throttle keys that are configured or in use.
    pub async fn list_throttles(&self, filter: ThrottleFilter) -> Result<ThrottlePage> {
        let request = proto::ListThrottlesRequest {
            prefix: filter.prefix,
            unset: filter.unset,
            limit: filter.limit.unwrap_or_default(),
        };
        let send = |mut admin: Admin, request| async move { admin.list_throttles(request).await };
        let response = self.call().repeatable().send(request, send).await?;
        Ok(ThrottlePage {
            throttles: response.throttles.into_iter().map(ThrottleKeyStats::from).collect(),
            total_count: response.total_count,
        })
    }

    /// Stops deliveries with a throttle key in all queues, for a time or until it is resumed.
    pub async fn pause_throttle(&self, key: &str, duration: Option<Duration>) -> Result<()> {
        let request = proto::PauseRequest {
            throttle_key: key.to_owned(),
            duration_ms: duration.map_or(0, as_ms),
            ..Default::default()
        };
        let send = |mut admin: Admin, request| async move { admin.pause(request).await };
        self.call().send(request, send).await.map(drop)
    }

    /// Starts deliveries with a throttle key again, whoever stopped them.
    pub async fn resume_throttle(&self, key: &str) -> Result<()> {
        let request = proto::ResumeRequest { throttle_key: key.to_owned(), ..Default::default() };
        let send = |mut admin: Admin, request| async move { admin.resume(request).await };
        self.call().send(request, send).await.map(drop)
    }
}

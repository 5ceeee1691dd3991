// SPDX-License-Identifier: AGPL-3.0-only
//! The edge's limits, as Python gives them: each by its name, all of them.

use std::collections::HashMap;
use std::time::Duration;

pub struct Settings {
    pub max_request_bytes: usize,
    pub max_stream_request_bytes: usize,
    pub max_metadata_bytes: u32,
    pub max_connections: u64,
    pub max_concurrent_streams: u32,
    pub max_concurrent_calls: u64,
    pub inbox_bytes: usize,
    pub max_unread_bytes: usize,
    pub handshake_timeout: Duration,
    pub arrival_timeout: Duration,
    pub keepalive_time: Duration,
    pub keepalive_timeout: Duration,
    pub min_ping_interval: Duration,
    pub watches_max: u64,
    pub reflection_streams_max: u64,
}

impl Settings {
    /// Fails with a text that names the setting that is missing, unknown or out of range.
    pub fn new(mut given: HashMap<String, i64>) -> Result<Self, String> {
        let mut take = |name: &str| -> Result<u32, String> {
            let value = given.remove(name).ok_or(format!("the setting {name} is missing"))?;
            u32::try_from(value).map_err(|_| format!("{name} of {value} is not between 0 and 2^32"))
        };
        let settings = Self {
            max_request_bytes: take("max_request_bytes")? as usize,
            max_stream_request_bytes: take("max_stream_request_bytes")? as usize,
            max_metadata_bytes: take("max_metadata_bytes")?,
            max_connections: take("max_connections")?.into(),
            max_concurrent_streams: take("max_concurrent_streams")?,
            max_concurrent_calls: take("max_concurrent_calls")?.into(),
            inbox_bytes: take("inbox_bytes")? as usize,
            max_unread_bytes: take("max_unread_bytes")? as usize,
            handshake_timeout: milliseconds(take("handshake_timeout_ms")?),
            arrival_timeout: milliseconds(take("arrival_timeout_ms")?),
            keepalive_time: milliseconds(take("keepalive_time_ms")?),
            keepalive_timeout: milliseconds(take("keepalive_timeout_ms")?),
            min_ping_interval: milliseconds(take("min_ping_interval_ms")?),
            watches_max: take("watches_max")?.into(),
            reflection_streams_max: take("reflection_streams_max")?.into(),
        };
        match given.keys().next() {
            Some(name) => Err(format!("there is no setting {name}")),
            None => Ok(settings),
        }
    }
}

fn milliseconds(count: u32) -> Duration {
    Duration::from_millis(count.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 15] = [
        "max_request_bytes",
        "max_stream_request_bytes",
        "max_metadata_bytes",
        "max_connections",
        "max_concurrent_streams",
        "max_concurrent_calls",
        "inbox_bytes",
        "max_unread_bytes",
        "handshake_timeout_ms",
        "arrival_timeout_ms",
        "keepalive_time_ms",
        "keepalive_timeout_ms",
        "min_ping_interval_ms",
        "watches_max",
        "reflection_streams_max",
    ];

    fn given() -> HashMap<String, i64> {
        NAMES.iter().map(|name| ((*name).to_owned(), 1000)).collect()
    }

    #[test]
    fn all_are_needed_and_no_others_are_known() {
        assert!(Settings::new(given()).is_ok());
        for name in NAMES {
            let mut given = given();
            given.remove(name);
            let refusal = Settings::new(given).err().expect("one is missing");
            assert_eq!(refusal, format!("the setting {name} is missing"));
        }
        let mut more = given();
        more.insert("colour".into(), 1);
        assert_eq!(Settings::new(more).err().as_deref(), Some("there is no setting colour"));
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let mut given = given();
        given.insert("inbox_bytes".into(), -1);
        let refusal = Settings::new(given).err().expect("it is negative");
        assert!(refusal.starts_with("inbox_bytes of -1 is not between"));
    }
}

// SPDX-License-Identifier: AGPL-3.0-only
//! Frames that cost their sender nothing: how many of them a connection may send.
//!
//! Pings follow gRPC's own rule: more than two that come sooner than they may, with nothing sent to
//! the peer between them, end the connection. The others may come in bursts, as clients that give
//! up a thousand calls at once do, and then at a steady rate. WINDOW_UPDATEs are paid for by what
//! is sent to the peer.

use std::time::{Duration, Instant};

use crate::frames::{
    Head, ACK, CONTINUATION, DATA, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS,
};

const STRIKES_MAX: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    Pings,
    Resets,
    Other,
}

impl Flood {
    /// What the peer is told; the first is gRPC's own word, and clients know it.
    pub fn why(self) -> &'static str {
        match self {
            Self::Pings => "too_many_pings",
            Self::Resets => "too_many_resets",
            Self::Other => "too_many_control_frames",
        }
    }
}

/// So many at once, and so many per second.
struct Bucket {
    left: f64,
    most: f64,
    per_second: f64,
    at: Instant,
}

impl Bucket {
    fn new(most: f64, per_second: f64, now: Instant) -> Self {
        Self { left: most, most, per_second, at: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        if self.left < 1.0 {
            self.put(now.duration_since(self.at).as_secs_f64() * self.per_second);
            self.at = now;
        }
        self.left -= 1.0;
        self.left >= 0.0
    }

    fn put(&mut self, count: f64) {
        self.left = self.most.min(self.left.max(0.0) + count);
    }
}

pub struct Floods {
    ping_interval: Duration,
    last_ping: Option<Instant>,
    strikes: u32,
    settings: Bucket,
    resets: Bucket,
    others: Bucket,
}

impl Floods {
    pub fn new(ping_interval: Duration, now: Instant) -> Self {
        Self {
            ping_interval,
            last_ping: None,
            strikes: 0,
            settings: Bucket::new(200.0, 20.0, now),
            resets: Bucket::new(10_000.0, 1000.0, now),
            others: Bucket::new(10_000.0, 1000.0, now),
        }
    }

    /// Count a frame of the peer; return what there is too much of.
    pub fn came(&mut self, head: Head, now: Instant) -> Option<Flood> {
        let (is_fine, flood) = match head.kind {
            PING if head.flags & ACK == 0 => (self.ping(now), Flood::Pings),
            SETTINGS => (self.settings.take(now), Flood::Other),
            RST_STREAM => (self.resets.take(now), Flood::Resets),
            DATA if head.size > 0 || head.flags & END_STREAM != 0 => return None,
            HEADERS | CONTINUATION => return None, // bounded by streams and by metadata
            _ => (self.others.take(now), Flood::Other),
        };
        (!is_fine).then_some(flood)
    }

    /// Count a frame to the peer.
    pub fn sent(&mut self, head: Head) {
        if head.kind == DATA || head.kind == HEADERS {
            self.last_ping = None;
            self.strikes = 0;
            self.others.put(4.0); // windows are opened for it, of the stream and the connection
        }
    }

    fn ping(&mut self, now: Instant) -> bool {
        let is_early =
            self.last_ping.is_some_and(|last| now.duration_since(last) < self.ping_interval);
        self.last_ping = Some(now);
        self.strikes += u32::from(is_early);
        self.strikes <= STRIKES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_UPDATE: u8 = 8;

    fn head(kind: u8) -> Head {
        Head { size: 0, kind, flags: 0, stream: 1 }
    }

    fn floods() -> (Floods, Instant) {
        let now = Instant::now();
        (Floods::new(Duration::from_secs(1), now), now)
    }

    #[test]
    fn three_early_pings_are_too_many() {
        let (mut floods, now) = floods();
        for _ in 0..3 {
            assert_eq!(floods.came(head(PING), now), None);
        }
        assert_eq!(floods.came(head(PING), now), Some(Flood::Pings));
    }

    #[test]
    fn pings_at_their_interval_and_answers_to_ours_are_fine() {
        let (mut floods, now) = floods();
        for n in 0..1000 {
            assert_eq!(floods.came(head(PING), now + Duration::from_secs(n)), None);
        }
        for _ in 0..100 {
            let pong = Head { flags: ACK, ..head(PING) };
            assert_eq!(floods.came(pong, now), None);
        }
    }

    #[test]
    fn what_is_sent_forgives_pings() {
        let (mut floods, now) = floods();
        for _ in 0..100 {
            assert_eq!(floods.came(head(PING), now), None);
            assert_eq!(floods.came(head(PING), now), None);
            floods.sent(head(DATA));
        }
    }

    #[test]
    fn resets_may_come_in_bursts_and_then_steadily() {
        let (mut floods, now) = floods();
        let first = (0..20_000).position(|_| floods.came(head(RST_STREAM), now).is_some());
        assert_eq!(first, Some(10_000));
        let later = now + Duration::from_secs(1);
        let next = (0..20_000).position(|_| floods.came(head(RST_STREAM), later).is_some());
        assert_eq!(next, Some(1000));
    }

    #[test]
    fn settings_and_empty_frames_are_counted_and_bodies_are_not() {
        let (mut floods, now) = floods();
        assert_eq!((0..999).position(|_| floods.came(head(SETTINGS), now).is_some()), Some(200));
        for kind in [DATA, 2, WINDOW_UPDATE, 99] {
            let (mut floods, now) = self::floods();
            let first = (0..20_000).position(|_| floods.came(head(kind), now).is_some());
            assert_eq!(first, Some(10_000), "{kind}");
        }
        let body = Head { size: 1, ..head(DATA) };
        let last = Head { flags: END_STREAM, ..head(DATA) };
        for _ in 0..50_000 {
            assert_eq!((floods.came(body, now), floods.came(last, now)), (None, None));
        }
    }

    #[test]
    fn windows_are_paid_for_by_what_is_sent() {
        let (mut floods, now) = floods();
        for _ in 0..100_000 {
            floods.sent(head(DATA));
            assert_eq!(floods.came(head(WINDOW_UPDATE), now), None);
            assert_eq!(floods.came(head(WINDOW_UPDATE), now), None);
        }
    }
}

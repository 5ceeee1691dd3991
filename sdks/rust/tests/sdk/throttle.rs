// SPDX-License-Identifier: AGPL-3.0-only
//! Throttle keys are listed, paused and resumed, and every field of them is read.

use std::time::{Duration, UNIX_EPOCH};

use fila::ThrottleFilter;

use crate::admin::{at, exchange};
use crate::proto;

pub fn throttle() -> proto::PerThrottleKeyStats {
    proto::PerThrottleKeyStats {
        key: "mail".to_owned(),
        tokens: 0.5,
        rate_per_second: 1.5,
        burst: 2.5,
        passed: 1,
        blocked: 2,
        concurrency_limit: 3,
        in_flight: 4,
        paused_until: at(5),
        waiting: 6,
        passed_per_second: 7.5,
        blocked_per_second: 8.5,
        pattern: "mai*".to_owned(),
        unset: true,
        paused: true,
    }
}

pub fn is_read_in_full(throttle: &fila::ThrottleKeyStats) {
    assert_eq!(throttle.key, "mail");
    assert_eq!((throttle.tokens, throttle.rate_per_second, throttle.burst), (0.5, 1.5, 2.5));
    assert_eq!((throttle.passed, throttle.blocked, throttle.waiting), (1, 2, 6));
    assert_eq!((throttle.concurrency_limit, throttle.in_flight), (3, 4));
    assert_eq!(throttle.paused_until, Some(UNIX_EPOCH + Duration::from_secs(5)));
    assert_eq!((throttle.passed_per_second, throttle.blocked_per_second), (7.5, 8.5));
    assert_eq!((throttle.pattern.as_str(), throttle.unset, throttle.paused), ("mai*", true, true));
}

#[tokio::test]
async fn throttle_keys_are_listed_paused_and_resumed() {
    let answer = proto::ListThrottlesResponse { throttles: vec![throttle()], total_count: 7 };
    let (request, page): (proto::ListThrottlesRequest, _) =
        exchange("ListThrottles", answer, |client| async move {
            let filter = ThrottleFilter { prefix: "mail".to_owned(), unset: true, limit: Some(1) };
            client.list_throttles(filter).await
        })
        .await;
    assert_eq!((request.prefix.as_str(), request.unset, request.limit), ("mail", true, 1));
    assert_eq!((page.throttles.len(), page.total_count), (1, 7));
    is_read_in_full(&page.throttles[0]);

    for (duration, duration_ms) in [(None, 0), (Some(Duration::from_secs(60)), 60_000)] {
        let (request, ()): (proto::PauseRequest, _) =
            exchange("Pause", proto::PauseResponse {}, |client| async move {
                client.pause_throttle("stripe", duration).await
            })
            .await;
        let throttle_key = "stripe".to_owned();
        let expected = proto::PauseRequest { throttle_key, duration_ms, ..Default::default() };
        assert_eq!(request, expected);
    }
    let (request, ()): (proto::ResumeRequest, _) =
        exchange("Resume", proto::ResumeResponse {}, |client| async move {
            client.resume_throttle("stripe").await
        })
        .await;
    let throttle_key = "stripe".to_owned();
    assert_eq!(request, proto::ResumeRequest { throttle_key, ..Default::default() });
}

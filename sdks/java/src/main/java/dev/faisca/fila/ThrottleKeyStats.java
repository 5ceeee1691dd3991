// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Instant;

/**
 * One throttle key: its token bucket and its concurrency limit.
 *
 * @param key the throttle key
 * @param tokens tokens in the bucket now
 * @param ratePerSecond tokens added per second; 0 when there is no rate limit
 * @param burst the most tokens the bucket holds
 * @param passed deliveries that took tokens since the broker started
 * @param blocked times a lane was parked because the bucket was empty or the limit reached
 * @param concurrencyLimit most leased messages with this key at a time; 0 when there is no limit
 * @param inFlight leased messages with this key now
 * @param pausedUntil when a pause ends by itself; null when there is none, or none that does
 * @param waiting waiting messages with this key
 * @param passedPerSecond deliveries per second that took tokens, of late
 * @param blockedPerSecond times per second that a lane was parked, of late
 * @param pattern the pattern whose setting applies; empty for a setting of the key's own, or none
 * @param isUnset true for a key in use that nobody configured
 * @param isPaused true while an operator has paused the key
 */
public record ThrottleKeyStats(
    String key,
    double tokens,
    double ratePerSecond,
    double burst,
    long passed,
    long blocked,
    int concurrencyLimit,
    int inFlight,
    Instant pausedUntil,
    long waiting,
    double passedPerSecond,
    double blockedPerSecond,
    String pattern,
    boolean isUnset,
    boolean isPaused) {}

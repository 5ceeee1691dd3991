// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * How a queue's hooks are doing.
 *
 * @param calls hook calls that gave an answer
 * @param failures hook calls that failed
 * @param bypassed enqueues that bypassed the hook while its circuit breaker was open
 * @param isCircuitOpen true while the circuit breaker is open
 * @param lastError what the most recent failure said; never a header value
 */
public record HookStats(
    long calls, long failures, long bypassed, boolean isCircuitOpen, String lastError) {}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * One fairness key of a queue.
 *
 * @param key the fairness key
 * @param pendingCount messages that wait for a delivery and are not delayed
 * @param currentDeficit deliveries that the key may still make in its turn
 * @param weight the key's share relative to the others
 * @param delivered deliveries made since the key became active
 * @param throttled messages that a throttle key holds back
 * @param isPaused true while the key is paused
 * @param roundPosition its place in the round, 0 when it is its turn; null when it takes no part
 */
public record FairnessKeyStats(
    String key,
    long pendingCount,
    long currentDeficit,
    int weight,
    long delivered,
    long throttled,
    boolean isPaused,
    Integer roundPosition) {}

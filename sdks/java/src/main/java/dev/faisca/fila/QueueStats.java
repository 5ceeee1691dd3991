// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;
import java.util.List;

/**
 * Counts, scheduling state and settings of one queue.
 *
 * @param depth messages that wait for a delivery and are not delayed
 * @param inFlight messages that are leased
 * @param activeFairnessKeys fairness keys with messages waiting
 * @param activeConsumers open consume streams
 * @param quantum messages per unit of weight and turn
 * @param perKeyStats the busiest fairness keys, most waiting first
 * @param perThrottleStats the throttle keys that waiting messages carry
 * @param leaderNodeId the broker that leads the queue; 0 outside a cluster
 * @param replicationCount brokers that hold a copy of the queue; 0 outside a cluster
 * @param counters what happened since the broker started
 * @param config all settings of the queue
 * @param oldestPendingAge how long the first deliverable message has waited; zero for none
 * @param deadLetterOf the queue that these dead letters came from; empty for an ordinary queue
 * @param consumerCredit consume streams' unused credit, added up
 * @param throttled waiting messages that a throttle key holds back
 * @param hooks state of the queue's hooks; null when it has none
 * @param delayed messages that wait for their time
 * @param isPaused true while the whole queue is paused
 * @param roundKey the fairness key whose turn it is; empty when none takes part in the round
 */
public record QueueStats(
    long depth,
    long inFlight,
    long activeFairnessKeys,
    int activeConsumers,
    int quantum,
    List<FairnessKeyStats> perKeyStats,
    List<ThrottleKeyStats> perThrottleStats,
    long leaderNodeId,
    int replicationCount,
    QueueCounters counters,
    QueueConfig config,
    Duration oldestPendingAge,
    String deadLetterOf,
    long consumerCredit,
    long throttled,
    HookStats hooks,
    long delayed,
    boolean isPaused,
    String roundKey) {}

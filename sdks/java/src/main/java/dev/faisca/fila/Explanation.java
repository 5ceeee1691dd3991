// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Instant;
import java.util.List;

/**
 * Why a message or a fairness key waits.
 *
 * @param summary one sentence for people
 * @param reasons every reason that holds now, the one that decides first
 * @param estimatedAt when the next delivery is expected; null when that cannot be known
 * @param fairnessKey the fairness key in question
 * @param pendingCount messages of the key that wait
 * @param ahead deliveries expected before the one in question
 * @param state the message's state; null when a key was asked about
 * @param failures the message's last five, oldest first; empty when a key was asked about
 * @param unsetThrottleKeys the throttle keys it carries that nobody configured
 */
public record Explanation(
    String summary,
    List<WaitReason> reasons,
    Instant estimatedAt,
    String fairnessKey,
    long pendingCount,
    long ahead,
    MessageState state,
    List<Failure> failures,
    List<String> unsetThrottleKeys) {}

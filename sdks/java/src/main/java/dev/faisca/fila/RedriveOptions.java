// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.util.List;

/**
 * Which dead letters to move.
 *
 * @param count the most messages to move; 0 means all
 * @param fairnessKey only messages of this fairness key; null means any
 * @param errorContains only messages whose last error contains this text; null means any
 * @param messageIds only these messages; empty means any
 */
public record RedriveOptions(
    long count, String fairnessKey, String errorContains, List<String> messageIds) {
  /** All of them. */
  public static final RedriveOptions ALL = new RedriveOptions(0, null, null, List.of());

  /** Fails with IllegalArgumentException for a negative count. */
  public RedriveOptions {
    Wire.count("count", count);
    messageIds = List.copyOf(messageIds);
  }

  /** The same up to a number. */
  public RedriveOptions withCount(long count) {
    return new RedriveOptions(count, fairnessKey, errorContains, messageIds);
  }

  /** The same for one fairness key. */
  public RedriveOptions withFairnessKey(String fairnessKey) {
    return new RedriveOptions(count, fairnessKey, errorContains, messageIds);
  }

  /** The same for messages that failed with this text in their error. */
  public RedriveOptions withErrorContaining(String errorContains) {
    return new RedriveOptions(count, fairnessKey, errorContains, messageIds);
  }

  /** The same for these messages. */
  public RedriveOptions withMessageIds(List<String> messageIds) {
    return new RedriveOptions(count, fairnessKey, errorContains, messageIds);
  }
}

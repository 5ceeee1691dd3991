// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * Which messages to look at.
 *
 * @param limit the most messages to return; 0 means 10, at most 1000
 * @param fromPosition only messages at or after this position; 0 starts at the oldest
 * @param untilPosition only messages before this position; 0 means up to the newest
 * @param fairnessKey only messages of this fairness key; null means any
 * @param state only messages in this state; null means any
 * @param excludePayload leave payloads out
 */
public record PeekOptions(
    int limit,
    long fromPosition,
    long untilPosition,
    String fairnessKey,
    MessageState state,
    boolean excludePayload) {
  /** The ten oldest, payloads included. */
  public static final PeekOptions DEFAULT = new PeekOptions(10, 0, 0, null, null, false);

  /** Fails with IllegalArgumentException for a negative number. */
  public PeekOptions {
    Wire.count("limit", limit);
    Wire.count("fromPosition", fromPosition);
    Wire.count("untilPosition", untilPosition);
  }

  /** The same with another number of messages. */
  public PeekOptions withLimit(int limit) {
    return new PeekOptions(limit, fromPosition, untilPosition, fairnessKey, state, excludePayload);
  }

  /** The same for positions from one to another. */
  public PeekOptions withPositions(long fromPosition, long untilPosition) {
    return new PeekOptions(limit, fromPosition, untilPosition, fairnessKey, state, excludePayload);
  }

  /** The same for one fairness key. */
  public PeekOptions withFairnessKey(String fairnessKey) {
    return new PeekOptions(limit, fromPosition, untilPosition, fairnessKey, state, excludePayload);
  }

  /** The same for one state. */
  public PeekOptions withState(MessageState state) {
    return new PeekOptions(limit, fromPosition, untilPosition, fairnessKey, state, excludePayload);
  }

  /** The same without payloads. */
  public PeekOptions withoutPayload() {
    return new PeekOptions(limit, fromPosition, untilPosition, fairnessKey, state, true);
  }
}

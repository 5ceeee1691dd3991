// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;

/**
 * How a consumer receives.
 *
 * @param maxInFlight the most messages leased to the consumer at a time; 0 leaves it to the broker
 * @param batchSize the most messages that arrive together
 * @param visibilityTimeout how long each lease lasts; null takes the queue's visibility timeout
 * @param extendLeases whether the leases of messages that wait in the consumer are extended
 */
public record ConsumeOptions(
    int maxInFlight, int batchSize, Duration visibilityTimeout, boolean extendLeases) {
  /**
   * 64 in flight is what a handler that takes 0.4 s works off before a default lease of 30 s ends,
   * and leaves something for a second worker. Frames of half of that keep it supplied.
   */
  public static final ConsumeOptions DEFAULT = new ConsumeOptions(64, 32, null, true);

  /** Fails with IllegalArgumentException for a negative number. */
  public ConsumeOptions {
    Wire.count("maxInFlight", maxInFlight);
    Wire.count("batchSize", batchSize);
    Wire.millis("visibilityTimeout", visibilityTimeout);
  }

  /** The same with another number of messages in flight. */
  public ConsumeOptions withMaxInFlight(int maxInFlight) {
    return new ConsumeOptions(maxInFlight, batchSize, visibilityTimeout, extendLeases);
  }

  /** The same with another number of messages in a frame. */
  public ConsumeOptions withBatchSize(int batchSize) {
    return new ConsumeOptions(maxInFlight, batchSize, visibilityTimeout, extendLeases);
  }

  /** The same with another length of a lease. */
  public ConsumeOptions withVisibilityTimeout(Duration visibilityTimeout) {
    return new ConsumeOptions(maxInFlight, batchSize, visibilityTimeout, extendLeases);
  }

  /** The same with leases extended or not. */
  public ConsumeOptions withExtendLeases(boolean extendLeases) {
    return new ConsumeOptions(maxInFlight, batchSize, visibilityTimeout, extendLeases);
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;

/**
 * How a consumer receives.
 *
 * @param maxInFlight the most messages leased to the consumer at a time; 0 leaves it to the broker
 * @param batchSize the most messages that arrive together
 * @param visibilityTimeout how long each lease lasts; null takes the queue's visibility timeout
 */
public record ConsumeOptions(int maxInFlight, int batchSize, Duration visibilityTimeout) {
  /**
   * 256 in flight is what a handler that takes 0.1 s works off before a default lease of 30 s ends.
   * A frame costs the broker the same whatever it holds, so a hundred messages share it.
   */
  public static final ConsumeOptions DEFAULT = new ConsumeOptions(256, 100, null);

  /** Fails with IllegalArgumentException for a negative number. */
  public ConsumeOptions {
    Wire.count("maxInFlight", maxInFlight);
    Wire.count("batchSize", batchSize);
    Wire.millis("visibilityTimeout", visibilityTimeout);
  }

  /** The same with another number of messages in flight. */
  public ConsumeOptions withMaxInFlight(int maxInFlight) {
    return new ConsumeOptions(maxInFlight, batchSize, visibilityTimeout);
  }

  /** The same with another number of messages in a frame. */
  public ConsumeOptions withBatchSize(int batchSize) {
    return new ConsumeOptions(maxInFlight, batchSize, visibilityTimeout);
  }

  /** The same with another length of a lease. */
  public ConsumeOptions withVisibilityTimeout(Duration visibilityTimeout) {
    return new ConsumeOptions(maxInFlight, batchSize, visibilityTimeout);
  }
}

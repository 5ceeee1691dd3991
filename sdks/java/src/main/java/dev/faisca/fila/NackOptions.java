// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;

/**
 * Makes a nack backpressure instead of failure: the message comes back later and no attempt is
 * counted.
 *
 * @param retryAfter when the message comes back; null makes the nack a failure
 * @param throttleKey lets nothing through until then, for anybody; null stops no throttle key
 */
public record NackOptions(Duration retryAfter, String throttleKey) {
  /** A failure. */
  public static final NackOptions NONE = new NackOptions(null, null);

  /** Fails with IllegalArgumentException for a negative time. */
  public NackOptions {
    Wire.millis("retryAfter", retryAfter);
  }

  /** The same with a time to come back. */
  public NackOptions withRetryAfter(Duration retryAfter) {
    return new NackOptions(retryAfter, throttleKey);
  }

  /** The same with a throttle key to stop. */
  public NackOptions withThrottleKey(String throttleKey) {
    return new NackOptions(retryAfter, throttleKey);
  }
}

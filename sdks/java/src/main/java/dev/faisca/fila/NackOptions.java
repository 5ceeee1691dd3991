// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;

/**
 * Makes a nack something else than a failure: backpressure, for which the message comes back later
 * and no attempt is counted, or the end, because trying again would not help.
 *
 * @param retryAfter when the message comes back; null makes the nack a failure
 * @param throttleKey lets nothing through until then, for anybody; null stops no throttle key
 * @param deadLetter makes the message a dead letter at once; excludes retryAfter
 */
public record NackOptions(Duration retryAfter, String throttleKey, boolean deadLetter) {
  /** A failure. */
  public static final NackOptions NONE = new NackOptions(null, null, false);

  /** Trying again would not help. */
  public static final NackOptions DEAD_LETTER = NONE.withDeadLetter(true);

  /** Fails with IllegalArgumentException for a negative time. */
  public NackOptions {
    Wire.millis("retryAfter", retryAfter);
  }

  /** The same with a time to come back. */
  public NackOptions withRetryAfter(Duration retryAfter) {
    return new NackOptions(retryAfter, throttleKey, deadLetter);
  }

  /** The same with a throttle key to stop. */
  public NackOptions withThrottleKey(String throttleKey) {
    return new NackOptions(retryAfter, throttleKey, deadLetter);
  }

  /** The same as the message's end, or not. */
  public NackOptions withDeadLetter(boolean deadLetter) {
    return new NackOptions(retryAfter, throttleKey, deadLetter);
  }
}

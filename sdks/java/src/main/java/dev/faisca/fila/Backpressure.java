// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;
import java.util.Objects;

/**
 * Thrown by a {@link Handler}: not now. The message comes back after a time and no attempt is
 * counted.
 */
public final class Backpressure extends RuntimeException {
  private static final long serialVersionUID = 1L;

  private final Duration retryAfter;
  private final String throttleKey;

  /** Puts the message off. */
  public Backpressure(Duration retryAfter) {
    this(retryAfter, null);
  }

  /** Puts the message off, and lets nothing through with a throttle key until then. */
  public Backpressure(Duration retryAfter, String throttleKey) {
    this(retryAfter, throttleKey, "");
  }

  /**
   * Like the others, and says why.
   *
   * @param retryAfter when the message comes back
   * @param throttleKey lets nothing through until then, for anybody; null stops no throttle key
   * @param reason for people
   */
  public Backpressure(Duration retryAfter, String throttleKey, String reason) {
    super(reason);
    Wire.millis("retryAfter", Objects.requireNonNull(retryAfter, "retryAfter"));
    Wire.optional("throttleKey", throttleKey);
    this.retryAfter = retryAfter;
    this.throttleKey = throttleKey;
  }

  /** When the message comes back. */
  public Duration retryAfter() {
    return retryAfter;
  }

  /** The throttle key that lets nothing through until then; null for none. */
  public String throttleKey() {
    return throttleKey;
  }
}

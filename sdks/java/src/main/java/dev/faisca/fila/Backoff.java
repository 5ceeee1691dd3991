// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;

/**
 * How long to wait between attempts. The ceiling starts at {@code initial} and doubles up to {@code
 * maximum}; each wait is a random part of it, so that the clients of a broker that restarts do not
 * all come back in the same instant.
 *
 * @param initial the ceiling of the first wait
 * @param maximum the ceiling that doubling reaches
 */
public record Backoff(Duration initial, Duration maximum) {
  /** From 0.1 s up to 5 s. */
  public static final Backoff DEFAULT = new Backoff(Duration.ofMillis(100), Duration.ofSeconds(5));

  // Doubling has reached any maximum before this; the bound keeps the power finite.
  private static final int DOUBLINGS_MAX = 30;

  /** Fails with IllegalArgumentException unless {@code 0 < initial <= maximum}. */
  public Backoff {
    if (initial.isZero() || initial.isNegative() || initial.compareTo(maximum) > 0) {
      throw new IllegalArgumentException(
          "backoff needs 0 < initial <= maximum, got " + initial + " and " + maximum);
    }
  }

  /** The wait before retry number {@code attempt}, counted from 0; {@code chance} is 0 to 1. */
  Duration delay(int attempt, double chance) {
    double doubled = initial.toNanos() * Math.pow(2, Math.min(attempt, DOUBLINGS_MAX));
    return Duration.ofNanos((long) (chance * Math.min(doubled, maximum.toNanos())));
  }
}

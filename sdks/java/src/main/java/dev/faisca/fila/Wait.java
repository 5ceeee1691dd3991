// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** Waiting where neither a failure nor an interrupt may change what comes next. */
final class Wait {
  private Wait() {}

  /** Waits up to a time; an interrupt ends it, and the thread's flag stays set. */
  static void quietly(Future<?> future, Duration time) {
    try {
      future.get(time.toNanos(), TimeUnit.NANOSECONDS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    } catch (Exception notInTime) {
      // Who waits goes on either way.
    }
  }
}

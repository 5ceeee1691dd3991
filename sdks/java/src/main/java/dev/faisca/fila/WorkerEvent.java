// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;

/**
 * What became of one message in a {@link Worker}, for metrics and logs.
 *
 * @param kind what happened
 * @param message the message; a batch has an event for each
 * @param duration how long it was handled
 * @param error what the handler threw, or what a settlement failed with; null if neither
 */
public record WorkerEvent(Kind kind, ConsumeMessage message, Duration duration, Throwable error) {

  /** What can happen to a message. */
  public enum Kind {
    /** It was processed, and is gone. */
    ACKED,
    /** Its handling failed: it is retried, or dead-lettered after its last attempt. */
    NACKED,
    /** Its handler said {@link DeadLetter}. */
    DEAD_LETTERED,
    /** Its handler said {@link Backpressure}. */
    PUT_OFF,
    /** It was not handled, or not to its end, because the worker stopped. */
    GIVEN_BACK,
    /** Its handler took too long; NACKED follows. */
    TIMED_OUT,
    /** The broker could not be told what became of it; it comes back. */
    SETTLE_FAILED
  }
}

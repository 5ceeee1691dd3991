// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.Deadline;
import java.util.concurrent.TimeUnit;

/**
 * How much of what a client's single calls send may wait. Who finds no room waits in its own
 * thread, so that producers that are faster than the broker are slowed down.
 */
final class Room {
  // Answers are told in these threads. If what they call waited for room, nobody would make any.
  private static final ThreadLocal<Boolean> IS_ANSWERING = ThreadLocal.withInitial(() -> false);

  private final long bytesMax;
  private long bytes;

  Room(long bytesMax) {
    this.bytesMax = bytesMax;
  }

  /** Runs what tells callers their answers. */
  static void answering(Runnable tell) {
    boolean before = IS_ANSWERING.get();
    IS_ANSWERING.set(true);
    try {
      tell.run();
    } finally {
      IS_ANSWERING.set(before);
    }
  }

  /** Takes room if there is any. Anything fits into an empty room. */
  synchronized boolean take(int count) {
    if (bytes > 0 && bytes + count > bytesMax) {
      return false;
    }
    bytes += count;
    return true;
  }

  /** Takes room whether there is any or not. */
  synchronized void force(int count) {
    bytes += count;
  }

  synchronized void give(int count) {
    bytes -= count;
    notifyAll();
  }

  /** Waits for room and takes it; null, or why there was none. */
  synchronized FilaException await(Item<?> item, Deadline deadline) {
    if (IS_ANSWERING.get()) {
      force(item.bytes());
      return null;
    }
    while (!take(item.bytes())) {
      long nanos = deadline.timeRemaining(TimeUnit.NANOSECONDS);
      if (nanos <= 0) {
        return Errors.fromStatus(
            new CallFailure(
                "too much waits to be sent; this one was not sent",
                "DEADLINE_EXCEEDED",
                null,
                item.queue(),
                item.messageId(),
                null));
      }
      try {
        TimeUnit.NANOSECONDS.timedWait(this, nanos);
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
        String text = "the thread was interrupted; this one was not sent";
        return new CancelledException(CallFailure.local(text, item.queue(), item.messageId()));
      }
    }
    return null;
  }
}

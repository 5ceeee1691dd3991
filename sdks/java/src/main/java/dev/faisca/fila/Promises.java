// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.Deadline;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;

/**
 * Calls that were begun and have no answer yet, so that somebody can wait for those before a
 * moment. They are counted by spans of time: who waits ends the current one, and waits for it.
 */
final class Promises {
  private final Object lock = new Object();
  // Spans with calls that have no answer, oldest first, and the current one at the end.
  private final Deque<Span> spans = new ArrayDeque<>();

  Promises() {
    spans.add(new Span());
  }

  /** Counts a call until its span is told that it was answered, with whatever. */
  Span begin() {
    synchronized (lock) {
      Span current = spans.getLast();
      current.count++;
      return current;
    }
  }

  /** Waits for what was begun before; false if that takes too long. */
  boolean await(Deadline deadline) throws InterruptedException {
    synchronized (lock) {
      Span last = spans.getLast();
      spans.add(new Span());
      while (isOpen(last)) {
        long nanos = deadline.timeRemaining(TimeUnit.NANOSECONDS);
        if (nanos <= 0) {
          return false;
        }
        TimeUnit.NANOSECONDS.timedWait(lock, nanos);
      }
      return true;
    }
  }

  /** Whether a span, or one before it, has calls without an answer. */
  private boolean isOpen(Span last) {
    while (spans.size() > 1 && spans.getFirst().count == 0) {
      spans.removeFirst();
    }
    return spans.contains(last);
  }

  /** Calls that were begun between two moments. */
  final class Span implements BiConsumer<Object, Throwable> {
    private int count;

    void end() {
      synchronized (lock) {
        count--;
        if (count == 0 && spans.size() > 1) {
          lock.notifyAll();
        }
      }
    }

    @Override
    public void accept(Object value, Throwable error) {
      end();
    }
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.ConsumeRequest;
import dev.faisca.fila.internal.v1.ConsumeResponse;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.Status;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A stream of leased messages that outlives its connection.
 *
 * <pre>
 *  open --frame--&gt; unread --&gt; take()                      drain(), end() from anywhere end it
 *   ^                |
 *   '-- wait &lt;-- UNAVAILABLE, or the broker ended the stream      any other error is thrown
 * </pre>
 *
 * <p>A frame is asked for only when somebody wants a message and all before it were taken, so
 * gRPC's flow control and the broker's credit see how fast the application really is.
 */
final class ConsumeStream {
  private static final long FOREVER = Long.MAX_VALUE;

  private final Connection connection;
  private final FilaClient client;
  private final ConsumeRequest request;

  // Guards everything below.
  private final ReentrantLock lock = new ReentrantLock();
  private final Condition changed = lock.newCondition();
  private final Deque<ConsumeMessage> unread = new ArrayDeque<>();
  private Current current;
  // A frame was asked for and has not arrived.
  private boolean isReading;
  private boolean isClosed;
  private FilaException failure;
  private int attempts;
  private long openedAt;
  private long reopenAt = System.nanoTime();

  ConsumeStream(Connection connection, FilaClient client, ConsumeRequest request) {
    this.connection = connection;
    this.client = client;
    this.request = request;
  }

  boolean isClosed() {
    lock.lock();
    try {
      return isClosed;
    } finally {
      lock.unlock();
    }
  }

  /** The next message; null at the end, or when it took too long. A null wait is for ever. */
  ConsumeMessage take(Duration wait) throws FilaException {
    try {
      lock.lockInterruptibly();
      try {
        return takeLocked(wait == null ? FOREVER : wait.toNanos());
      } finally {
        lock.unlock();
      }
    } catch (InterruptedException interrupted) {
      throw Connection.interrupted();
    }
  }

  private ConsumeMessage takeLocked(long patience) throws FilaException, InterruptedException {
    long started = System.nanoTime();
    while (!isClosed) {
      if (!unread.isEmpty()) {
        return unread.remove();
      }
      if (failure != null) {
        isClosed = true;
        changed.signalAll();
        failure.fillInStackTrace();
        throw failure;
      }
      long nanos = advance();
      if (patience != FOREVER) {
        nanos = Math.min(nanos, patience - (System.nanoTime() - started));
        if (nanos <= 0) {
          return null;
        }
      }
      changed.awaitNanos(nanos);
    }
    return null;
  }

  /** Does what brings the next frame nearer, and returns after how long to look again. */
  private long advance() {
    if (current == null) {
      long pause = reopenAt - System.nanoTime();
      if (pause > 0) {
        return pause;
      }
      open();
    }
    if (!isReading) {
      isReading = true;
      current.call.request(1);
    }
    return FOREVER;
  }

  private void open() {
    openedAt = System.nanoTime();
    // A first attempt says soon, and in the log, that nobody is there. Later ones wait for the
    // channel, which knows when it is worth trying again.
    current = new Current(connection.stream(attempts > 0, Tracing.current()));
    current.call.start(current, new Metadata());
    current.call.sendMessage(request);
    current.call.halfClose();
  }

  /** Hands nothing out any more. Whether frames may still come, which {@link #end} should have. */
  boolean drain() {
    lock.lock();
    try {
      // Who has asked for a frame has taken all before it.
      boolean mayFollow = !isClosed && current != null && !isReading;
      isClosed = true;
      changed.signalAll();
      if (mayFollow) {
        // Ends by itself: the broker sends no more than its credit.
        current.call.request(Integer.MAX_VALUE);
      }
      return mayFollow;
    } finally {
      lock.unlock();
    }
  }

  /** Cancels the stream, and returns what was sent but not handed out. */
  List<ConsumeMessage> end() {
    lock.lock();
    try {
      if (current != null) {
        current.call.cancel("the consumer was closed", null);
        current = null;
      }
      List<ConsumeMessage> left = new ArrayList<>(unread);
      unread.clear();
      return left;
    } finally {
      lock.unlock();
    }
  }

  private void lost(FilaException error) {
    // A stream that lasted was a good one, even if its queue was empty all the time.
    Backoff backoff = connection.options().backoff();
    long now = System.nanoTime();
    if (now - openedAt > backoff.maximum().toNanos()) {
      attempts = 0;
    }
    if (attempts == 0) {
      String why = error == null ? "the broker ended it" : error.getMessage();
      Consumer.LOG.log(
          Level.WARNING,
          "consume stream of queue \"{0}\" was lost, reconnecting: {1}",
          request.getQueue(),
          why);
    }
    double chance = ThreadLocalRandom.current().nextDouble();
    reopenAt = now + backoff.delay(attempts++, chance).toNanos();
  }

  /** One stream of the broker's; there is another one after it was lost. */
  private final class Current extends ClientCall.Listener<ConsumeResponse> {
    private final ClientCall<ConsumeRequest, ConsumeResponse> call;

    Current(ClientCall<ConsumeRequest, ConsumeResponse> call) {
      this.call = call;
    }

    @Override
    public void onMessage(ConsumeResponse frame) {
      lock.lock();
      try {
        if (current == this) {
          isReading = false;
          attempts = 0;
          int size = frame.getMessagesCount();
          frame.getMessagesList().forEach(raw -> unread.add(new ConsumeMessage(raw, client, size)));
          changed.signalAll();
        }
      } finally {
        lock.unlock();
      }
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      lock.lock();
      try {
        if (current != this) {
          return;
        }
        current = null;
        isReading = false;
        FilaException error =
            status.isOk() ? null : connection.failure(status, trailers, request.getQueue(), null);
        if (isClosed) {
          return;
        }
        // A broker that stops cancels streams; nobody here did.
        if (error == null
            || error instanceof UnavailableException
            || error instanceof CancelledException) {
          lost(error);
        } else {
          failure = error;
        }
        changed.signalAll();
      } finally {
        lock.unlock();
      }
    }
  }
}

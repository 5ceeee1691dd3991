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
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A stream of leased messages that outlives its connection.
 *
 * <pre>
 *  open --frame--&gt; unread --&gt; take()                              end() from anywhere ends it
 *   ^                |
 *   '-- wait &lt;-- UNAVAILABLE, or the broker ended the stream      any other error is thrown
 * </pre>
 *
 * <p>The first wish for a message opens it. From then on frames are read as they come, because only
 * so is it known when their leases began; the broker's credit bounds how many there are. Unread
 * ones have their leases kept, and one whose lease has ended is handed out to nobody.
 */
final class ConsumeStream {
  private static final long FOREVER = Long.MAX_VALUE;

  private final Connection connection;
  private final FilaClient client;
  private final ConsumeRequest request;
  private final boolean keepsLeases;
  // Whether who takes a message lets it go, and not taking it.
  private final boolean isHeldByTaker;

  // Guards everything below.
  private final ReentrantLock lock = new ReentrantLock();
  private final Condition changed = lock.newCondition();
  private final Deque<ConsumeMessage> unread = new ArrayDeque<>();
  private Current current;
  private boolean isWanted;
  private boolean isClosed;
  // Said in the log, and not yet that it is there again.
  private boolean isLost;
  private FilaException failure;
  private int attempts;
  private long openedAt;

  ConsumeStream(
      Connection connection,
      FilaClient client,
      ConsumeRequest request,
      boolean keepsLeases,
      boolean isHeldByTaker) {
    this.connection = connection;
    this.client = client;
    this.request = request;
    this.keepsLeases = keepsLeases;
    this.isHeldByTaker = isHeldByTaker;
  }

  boolean isClosed() {
    lock.lock();
    try {
      return isClosed;
    } finally {
      lock.unlock();
    }
  }

  /**
   * What is there, up to a number, once there is something; empty at the end, or when it took too
   * long. A null wait is for ever.
   */
  List<ConsumeMessage> take(int count, Duration wait) throws FilaException {
    try {
      lock.lockInterruptibly();
      try {
        List<ConsumeMessage> taken = new ArrayList<>();
        if (awaitMessage(wait == null ? FOREVER : wait.toNanos())) {
          while (taken.size() < count && dropEnded()) {
            ConsumeMessage message = unread.remove();
            if (!isHeldByTaker) {
              message.letGo();
            }
            taken.add(message);
          }
        }
        return taken;
      } finally {
        lock.unlock();
      }
    } catch (InterruptedException interrupted) {
      throw Connection.interrupted();
    }
  }

  private boolean awaitMessage(long patience) throws FilaException, InterruptedException {
    long started = System.nanoTime();
    while (!isClosed) {
      if (dropEnded()) {
        return true;
      }
      if (failure != null) {
        isClosed = true;
        changed.signalAll();
        failure.fillInStackTrace();
        throw failure;
      }
      if (!isWanted) {
        isWanted = true;
        open();
      }
      long nanos = FOREVER;
      if (patience != FOREVER) {
        nanos = patience - (System.nanoTime() - started);
        if (nanos <= 0) {
          return false;
        }
      }
      changed.awaitNanos(nanos);
    }
    return false;
  }

  /** Leaves out what others may have by now. Whether a message is left. */
  private boolean dropEnded() {
    int dropped = 0;
    while (!unread.isEmpty() && unread.peek().isOver()) {
      unread.remove().letGo();
      dropped++;
    }
    if (dropped > 0) {
      Consumer.LOG.log(
          Level.DEBUG,
          "dropped {0} messages of queue \"{1}\" whose leases had ended",
          dropped,
          request.getQueue());
    }
    return !unread.isEmpty();
  }

  private void open() {
    openedAt = System.nanoTime();
    // A first attempt says soon, and in the log, that nobody is there. Later ones wait for the
    // channel, which knows when it is worth trying again.
    current = new Current(connection.stream(attempts > 0, Tracing.current()));
    current.call.start(current, new Metadata());
    current.call.request(Integer.MAX_VALUE);
    current.call.sendMessage(request);
    current.call.halfClose();
  }

  private void openAgain() {
    lock.lock();
    try {
      if (!isClosed) {
        open();
      }
    } finally {
      lock.unlock();
    }
  }

  /**
   * Hands nothing out any more and cancels the stream. Gives what arrived, until the stream has
   * really ended, and was not handed out; once.
   */
  CompletableFuture<List<ConsumeMessage>> end() {
    Current last;
    lock.lock();
    try {
      isClosed = true;
      changed.signalAll();
      last = current;
    } finally {
      lock.unlock();
    }
    if (last == null) {
      return CompletableFuture.completedFuture(left());
    }
    last.call.cancel("the consumer was closed", null);
    return last.ended.thenApply(ended -> left());
  }

  private List<ConsumeMessage> left() {
    lock.lock();
    try {
      List<ConsumeMessage> left = new ArrayList<>();
      while (dropEnded()) {
        left.add(unread.remove());
      }
      left.forEach(ConsumeMessage::letGo);
      return left;
    } finally {
      lock.unlock();
    }
  }

  private void lost(FilaException error) {
    // A stream that lasted was a good one, even if its queue was empty all the time.
    Backoff backoff = connection.options().backoff();
    if (System.nanoTime() - openedAt > backoff.maximum().toNanos()) {
      attempts = 0;
    }
    if (!isLost) {
      isLost = true;
      String why = error == null ? "the broker ended it" : error.getMessage();
      Consumer.LOG.log(
          Level.WARNING,
          "consume stream of queue \"{0}\" was lost, reconnecting: {1}",
          request.getQueue(),
          why);
    }
    double chance = ThreadLocalRandom.current().nextDouble();
    Duration pause = backoff.delay(attempts++, chance);
    connection.at(Connection.deadline(pause), this::openAgain);
  }

  /** One stream of the broker's; there is another one after it was lost. */
  private final class Current extends ClientCall.Listener<ConsumeResponse> {
    private final ClientCall<ConsumeRequest, ConsumeResponse> call;
    private final CompletableFuture<Void> ended = new CompletableFuture<>();

    Current(ClientCall<ConsumeRequest, ConsumeResponse> call) {
      this.call = call;
    }

    @Override
    public void onHeaders(Metadata headers) {
      lock.lock();
      try {
        if (isLost) {
          isLost = false;
          Consumer.LOG.log(
              Level.INFO, "consume stream of queue \"{0}\" is there again", request.getQueue());
        }
      } finally {
        lock.unlock();
      }
    }

    @Override
    public void onMessage(ConsumeResponse frame) {
      if (frame.getMessagesCount() == 0) {
        return;
      }
      Lease lease = new Lease(frame, client, System.nanoTime());
      lock.lock();
      try {
        attempts = 0;
        unread.addAll(lease.messages);
        if (keepsLeases) {
          client.shared().leases.keep(lease);
        }
        changed.signalAll();
      } finally {
        lock.unlock();
      }
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      if (lock.isHeldByCurrentThread()) {
        // The API key or an interceptor ended it in the middle of its opening.
        connection.at(Connection.deadline(Duration.ZERO), () -> onClose(status, trailers));
        return;
      }
      lock.lock();
      try {
        current = null;
        if (!isClosed) {
          FilaException error =
              status.isOk() ? null : connection.failure(status, trailers, request.getQueue(), null);
          // A broker that stops cancels streams; nobody here did.
          if (error == null
              || error instanceof UnavailableException
              || error instanceof CancelledException) {
            lost(error);
          } else {
            failure = error;
          }
          changed.signalAll();
        }
      } finally {
        lock.unlock();
      }
      ended.complete(null);
    }
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.NackRequest;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * Messages of a queue as the broker leases them, for as long as the consumer is open.
 *
 * <p>Iterate over it, {@link #poll} it, or let it call a {@link #listen listener}. Threads may
 * share it: each iterates with an iterator of its own, and each message goes to one of them. When
 * the connection is lost the iteration goes on with a new one. What trying again would not cure,
 * such as {@link QueueNotFoundException}, ends it: once as an error, then as an end.
 *
 * <p>Messages arrive ahead of time. The leases of those that wait here are extended; one whose
 * lease has ended is not handed out. What was handed out is the application's own.
 *
 * <p>Closing it, from any thread, ends the iteration and gives back what arrived but was not handed
 * out; otherwise those messages would be hidden until their leases end, and count an attempt that
 * nobody made.
 */
public final class Consumer implements Iterable<ConsumeMessage>, AutoCloseable {
  static final Logger LOG = System.getLogger("dev.faisca.fila");

  // Giving messages back is a courtesy: their leases end anyway, so it may not hold up a shutdown.
  static final Duration RELEASE = Duration.ofSeconds(1);

  private final Connection connection;
  private final ConsumeStream stream;
  // The client's open consumers, of which this is one until it ends.
  private final Set<Consumer> open;

  Consumer(Connection connection, ConsumeStream stream, Set<Consumer> open) {
    this.connection = connection;
    this.stream = stream;
    this.open = open;
  }

  /**
   * The next message, waiting for it up to a time; empty when none came, or when the consumer is
   * closed. Fails with the error that ended the stream, and with {@link CancelledException} when
   * the thread is interrupted; neither loses a message.
   */
  public Optional<ConsumeMessage> poll(Duration wait) throws FilaException {
    return Optional.ofNullable(take(wait));
  }

  /**
   * An iterator that blocks for messages and ends when the consumer is closed. It throws {@link
   * UncheckedFilaException}. Once {@code hasNext} was true, the message counts as handed out.
   */
  @Override
  public Iterator<ConsumeMessage> iterator() {
    return new Messages();
  }

  /**
   * Like the iteration, over lists of what is there: at least one message, at most so many. Nothing
   * lingers.
   */
  public Iterable<List<ConsumeMessage>> batches(int max) {
    if (max < 1) {
      throw new IllegalArgumentException("max must be positive, got " + max);
    }
    return () -> new Batched(max);
  }

  /**
   * Starts a daemon thread that hands every message to a listener, one after the other: the next
   * one is asked for when the listener has returned. Returns at once.
   */
  public Consumer listen(MessageListener listener) {
    Thread thread = new Thread(() -> deliver(listener), "fila-consumer");
    thread.setDaemon(true);
    thread.start();
    return this;
  }

  /** Whether it was closed, or has failed for good. */
  public boolean isClosed() {
    return stream.isClosed();
  }

  /** Ends the stream and gives back what was not handed out, in about a second. Harmless twice. */
  @Override
  public void close() {
    Wait.quietly(release(), RELEASE);
  }

  /**
   * Ends the stream and gives back what was not handed out, all of which the future waits for. It
   * never fails, and takes no longer than a second.
   */
  CompletableFuture<Void> release() {
    open.remove(this);
    return stream
        .end()
        .thenCompose(this::giveBack)
        .orTimeout(RELEASE.toMillis(), TimeUnit.MILLISECONDS)
        .exceptionally(
            error -> {
              LOG.log(Level.DEBUG, "messages not given back, their leases will end", error);
              return null;
            });
  }

  private CompletableFuture<Void> giveBack(List<ConsumeMessage> messages) {
    var splitter = new Bulk.Splitter<NackRequest>(messages.stream().map(Wire::release).iterator());
    CompletableFuture<Void> all = CompletableFuture.completedFuture(null);
    for (var batch = splitter.next(); !batch.isEmpty(); batch = splitter.next()) {
      var request = connection.send(Wire.NACK.call(batch), Connection.deadline(RELEASE), Map.of());
      all = CompletableFuture.allOf(all, request);
    }
    return all;
  }

  private ConsumeMessage take(Duration wait) throws FilaException {
    List<ConsumeMessage> taken = take(1, wait);
    return taken.isEmpty() ? null : taken.get(0);
  }

  /** What is there, up to a number; empty when the consumer is closed. */
  List<ConsumeMessage> take(int count) throws FilaException {
    return take(count, null);
  }

  private List<ConsumeMessage> take(int count, Duration wait) throws FilaException {
    try {
      return stream.take(count, wait);
    } catch (FilaException error) {
      if (stream.isClosed()) {
        open.remove(this);
      }
      throw error;
    }
  }

  private void deliver(MessageListener listener) {
    try {
      handOut(listener);
    } catch (RuntimeException | Error defect) {
      LOG.log(Level.ERROR, "the thread of a listener has failed, its consumer is closed", defect);
      close();
    }
  }

  private void handOut(MessageListener listener) {
    try {
      for (var message = take(null); message != null; message = take(null)) {
        deliver(listener, message);
      }
    } catch (FilaException error) {
      listener.onError(error);
      return;
    }
    listener.onEnd();
  }

  private static void deliver(MessageListener listener, ConsumeMessage message) {
    try {
      listener.onMessage(message);
    } catch (Throwable error) {
      if (error instanceof Error) {
        LOG.log(Level.ERROR, "a listener has failed, the next message is its own", error);
      }
      String text = error.getMessage() == null ? error.getClass().getName() : error.getMessage();
      // Nobody could do anything about a nack that fails; the lease ends then.
      message.nackAsync(Wire.shown(text), NackOptions.NONE);
    }
  }

  /** What is there, up to a number at a time. */
  private final class Batched implements Iterator<List<ConsumeMessage>> {
    private final int max;
    private List<ConsumeMessage> held = List.of();

    Batched(int max) {
      this.max = max;
    }

    @Override
    public boolean hasNext() {
      try {
        held = held.isEmpty() ? take(max) : held;
      } catch (FilaException error) {
        throw new UncheckedFilaException(error);
      }
      return !held.isEmpty();
    }

    @Override
    public List<ConsumeMessage> next() {
      if (!hasNext()) {
        throw new NoSuchElementException("the consumer is closed");
      }
      List<ConsumeMessage> batch = held;
      held = List.of();
      return batch;
    }
  }

  private final class Messages implements Iterator<ConsumeMessage> {
    private final Batched one = new Batched(1);

    @Override
    public boolean hasNext() {
      return one.hasNext();
    }

    @Override
    public ConsumeMessage next() {
      return one.next().get(0);
    }
  }
}

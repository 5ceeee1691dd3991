// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.Deadline;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * An answer that is asked for again while the broker is away, within one deadline. Cancelling it
 * cancels the request under way.
 */
final class Retrying<T> extends CompletableFuture<T> {
  private final Connection connection;
  private final Deadline deadline;
  private final Supplier<CompletableFuture<T>> send;
  private volatile CompletableFuture<T> current;
  private int attempts;

  private Retrying(Connection connection, Deadline deadline, Supplier<CompletableFuture<T>> send) {
    this.connection = connection;
    this.deadline = deadline;
    this.send = send;
  }

  /** Sends once, or more often if the request may be repeated. */
  static <T> CompletableFuture<T> start(
      Connection connection,
      boolean isRepeatable,
      Deadline deadline,
      Supplier<CompletableFuture<T>> send) {
    if (!isRepeatable) {
      return send.get();
    }
    Retrying<T> answer = new Retrying<>(connection, deadline, send);
    answer.attempt();
    return answer;
  }

  private void attempt() {
    if (isDone()) {
      return;
    }
    current = send.get();
    current.whenComplete(this::finish);
    if (isCancelled()) {
      current.cancel(true);
    }
  }

  private void finish(T value, Throwable error) {
    if (error == null) {
      complete(value);
      return;
    }
    Duration pause =
        connection.options().backoff().delay(attempts++, ThreadLocalRandom.current().nextDouble());
    boolean isInTime = pause.toNanos() < deadline.timeRemaining(TimeUnit.NANOSECONDS);
    if (error instanceof UnavailableException && isInTime) {
      connection.after(pause, this::attempt);
    } else {
      completeExceptionally(error);
    }
  }

  @Override
  public boolean cancel(boolean mayInterrupt) {
    boolean isFirst = super.cancel(mayInterrupt);
    CompletableFuture<T> request = current;
    if (request != null) {
      request.cancel(mayInterrupt);
    }
    return isFirst;
  }
}

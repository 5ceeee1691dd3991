// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.Deadline;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.IntFunction;
import java.util.function.Predicate;

/**
 * An answer that is asked for again while the broker is away, within one deadline. Cancelling it
 * cancels the request under way.
 */
final class Retrying<T> extends CompletableFuture<T> {
  private final Connection connection;
  private final Deadline deadline;
  private final IntFunction<CompletableFuture<T>> send;
  private final Predicate<Throwable> isDoneBefore;
  private volatile CompletableFuture<T> current;
  private int attempts;

  private Retrying(
      Connection connection,
      Deadline deadline,
      IntFunction<CompletableFuture<T>> send,
      Predicate<Throwable> isDoneBefore) {
    this.connection = connection;
    this.deadline = deadline;
    this.send = send;
    this.isDoneBefore = isDoneBefore;
  }

  /**
   * Sends once, or more often if the request may be repeated.
   *
   * @param send gets how often it was sent before
   * @param isDoneBefore whether a repeat's error says that an earlier one was applied, so that this
   *     is success, with null for a value
   */
  static <T> CompletableFuture<T> start(
      Connection connection,
      boolean isRepeatable,
      Deadline deadline,
      IntFunction<CompletableFuture<T>> send,
      Predicate<Throwable> isDoneBefore) {
    if (!isRepeatable) {
      return send.apply(0);
    }
    Retrying<T> answer = new Retrying<>(connection, deadline, send, isDoneBefore);
    answer.attempt();
    return answer;
  }

  /** Whether a request whose answer is there was sent more than once. */
  static boolean wasRepeated(CompletableFuture<?> answer) {
    return answer instanceof Retrying<?> retrying && retrying.attempts > 0;
  }

  private void attempt() {
    if (isDone()) {
      return;
    }
    current = send.apply(attempts);
    current.whenComplete(this::finish);
    if (isCancelled()) {
      current.cancel(true);
    }
  }

  private void finish(T value, Throwable error) {
    if (error == null || attempts > 0 && isDoneBefore.test(error)) {
      complete(value);
      return;
    }
    if (error instanceof UnavailableException) {
      double chance = ThreadLocalRandom.current().nextDouble();
      Duration pause = connection.options().backoff().delay(attempts, chance);
      if (pause.toNanos() < deadline.timeRemaining(TimeUnit.NANOSECONDS)) {
        attempts++;
        connection.after(pause, this::attempt);
        return;
      }
    }
    completeExceptionally(error);
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

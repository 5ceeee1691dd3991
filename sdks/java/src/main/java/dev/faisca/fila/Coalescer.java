// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.Deadline;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;

/**
 * Concurrent calls of one client share batch requests. Nothing lingers.
 *
 * <p>A few requests may be under way at a time. A call that finds a free slot goes out at once,
 * alone; calls that find none wait, and the next free slot takes all of them, within a batch's
 * limits. So batches grow only because calls piled up while the broker was busy with earlier ones.
 *
 * <p>A request has the deadline of its most patient caller; the others leave it when their own time
 * is up. It is cancelled only when all of its callers have left.
 */
final class Coalescer<I, T> {
  // Two keep the broker busy while an answer is on its way; with more, batches get smaller.
  static final int REQUESTS_UNDER_WAY_MAX = 2;

  private static final String NOT_SENT =
      "no answer to earlier requests came in time; this one was not sent";
  private static final String NOT_ANSWERED = "no answer came in time; the outcome is unknown";

  /** How a batch of items is sent: one outcome for each, in order. */
  interface Sending<I, T> {
    CompletableFuture<List<Outcome<T>>> send(
        Connection connection, List<Item<I>> items, Deadline deadline, Map<String, String> trace);
  }

  private final Sending<I, T> sending;
  private final Connection connection;
  // Guards the two below and what can change in a seat. Nobody waits while a slot is free.
  private final Object lock = new Object();
  private final Deque<Seat> waiting = new ArrayDeque<>();
  private int freeSlots = REQUESTS_UNDER_WAY_MAX;

  Coalescer(BatchRpc<I, T> rpc, Connection connection) {
    this((to, items, deadline, trace) -> to.send(rpc.call(items), deadline, trace), connection);
  }

  Coalescer(Sending<I, T> sending, Connection connection) {
    this.sending = sending;
    this.connection = connection;
  }

  /** Sends one item, with others if there are any. Fails with the item's error, or the batch's. */
  CompletableFuture<T> submit(Item<I> item, Deadline deadline, Map<String, String> trace) {
    Seat seat = new Seat(item, deadline, trace);
    synchronized (lock) {
      if (freeSlots == 0) {
        waiting.add(seat);
        seat.timer = connection.at(deadline, seat::expire);
        return seat;
      }
      freeSlots--;
    }
    send(List.of(seat));
    return seat;
  }

  int waitingCount() {
    synchronized (lock) {
      return waiting.size();
    }
  }

  private void send(List<Seat> batch) {
    List<Item<I>> items = new ArrayList<>(batch.size());
    Deadline deadline = batch.get(0).deadline;
    for (Seat seat : batch) {
      items.add(seat.item);
      if (deadline.isBefore(seat.deadline)) {
        deadline = seat.deadline;
      }
    }
    CompletableFuture<List<Outcome<T>>> request = request(batch, items, deadline);
    synchronized (lock) {
      Sent<T> sent = new Sent<>(request, batch);
      batch.forEach(seat -> seat.sent = sent);
    }
    // Some may have left before they could see what to cancel.
    batch.get(0).cancelIfDeserted();
    request.whenComplete((outcomes, error) -> finish(batch, items, outcomes, error));
  }

  /** Never throws: the slot is given back by whoever waits for the answer. */
  private CompletableFuture<List<Outcome<T>>> request(
      List<Seat> batch, List<Item<I>> items, Deadline deadline) {
    try {
      // The request can carry one trace; each message has its own in its headers.
      return sending.send(connection, items, deadline, batch.get(0).trace);
    } catch (RuntimeException | Error unsent) {
      return CompletableFuture.failedFuture(unsent);
    }
  }

  private void finish(
      List<Seat> batch, List<Item<I>> items, List<Outcome<T>> outcomes, Throwable error) {
    // First the slot, then the answers: the next request should not wait for wake-ups.
    handOn();
    if (error instanceof FilaException failure) {
      outcomes = BatchRpc.failed(items, failure, failure.getMessage());
    }
    for (int index = 0; index < batch.size(); index++) {
      batch.get(index).settle(outcomes == null ? null : outcomes.get(index), error);
    }
  }

  /** Gives a slot to whoever waits, or back. */
  private void handOn() {
    List<Seat> batch;
    synchronized (lock) {
      batch = take();
      if (batch.isEmpty()) {
        freeSlots++;
        return;
      }
      batch.forEach(seat -> seat.isSent = true);
    }
    send(batch);
  }

  /** Removes the next batch from the queue, and with it callers who no longer wait. */
  private List<Seat> take() {
    List<Seat> batch = new ArrayList<>();
    int bytes = 0;
    while (!waiting.isEmpty() && batch.size() < BatchRpc.ITEMS_MAX) {
      Seat seat = waiting.peek();
      if (!seat.isDone()) {
        bytes += seat.item.bytes();
        if (!batch.isEmpty() && bytes > BatchRpc.BYTES_MAX) {
          break;
        }
        batch.add(seat);
      }
      waiting.remove();
    }
    return batch;
  }

  /** A request under way, and the callers who may still wait for it. */
  private record Sent<T>(
      CompletableFuture<?> request, List<? extends CompletableFuture<T>> callers) {}

  /** One caller. It leaves by cancelling, or when its time is up. */
  private final class Seat extends CompletableFuture<T> {
    private final Item<I> item;
    private final Deadline deadline;
    private final Map<String, String> trace;
    private boolean isSent;
    private Sent<T> sent;
    private Future<?> timer;

    Seat(Item<I> item, Deadline deadline, Map<String, String> trace) {
      this.item = item;
      this.deadline = deadline;
      this.trace = trace;
    }

    void settle(Outcome<T> outcome, Throwable error) {
      if (timer != null) {
        timer.cancel(false);
      }
      if (outcome == null) {
        completeExceptionally(error);
      } else if (outcome.error() != null) {
        completeExceptionally(outcome.error());
      } else {
        complete(outcome.value());
      }
    }

    void expire() {
      String text;
      synchronized (lock) {
        text = isSent ? NOT_ANSWERED : NOT_SENT;
      }
      CallFailure tooLate =
          new CallFailure(text, "DEADLINE_EXCEEDED", null, item.queue(), item.messageId(), null);
      completeExceptionally(Errors.fromStatus(tooLate));
    }

    @Override
    public boolean cancel(boolean mayInterrupt) {
      boolean isFirst = super.cancel(mayInterrupt);
      cancelIfDeserted();
      return isFirst;
    }

    private void cancelIfDeserted() {
      Sent<T> mine;
      synchronized (lock) {
        mine = sent;
      }
      if (mine != null && mine.callers.stream().allMatch(CompletableFuture::isDone)) {
        mine.request.cancel(true);
      }
    }
  }
}

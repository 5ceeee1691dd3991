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
import java.util.concurrent.atomic.AtomicReference;

/**
 * Concurrent calls of one client share batch requests. Nothing lingers.
 *
 * <p>A few requests may be under way at a time. A call that finds a free slot goes out at once,
 * alone; calls that find none wait, and the next free slot takes all of them, within a batch's
 * limits. So batches grow only because calls piled up while the broker was busy with earlier ones.
 * How much may wait is bounded.
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
  private final Room room;
  // Guards the two below and what can change in a seat. Nobody waits while a slot is free.
  private final Object lock = new Object();
  private final Deque<Seat> waiting = new ArrayDeque<>();
  private int freeSlots = REQUESTS_UNDER_WAY_MAX;

  Coalescer(BatchRpc<I, T> rpc, Connection connection, Room room) {
    this(
        (to, items, deadline, trace) -> to.send(rpc.call(items), deadline, trace),
        connection,
        room);
  }

  Coalescer(Sending<I, T> sending, Connection connection, Room room) {
    this.sending = sending;
    this.connection = connection;
    this.room = room;
  }

  /**
   * Sends one item, with others if there are any. Fails with the item's error, or the batch's. If
   * too much waits already it waits for room first, unless it may not.
   */
  CompletableFuture<T> submit(
      Item<I> item, Deadline deadline, Map<String, String> trace, boolean mayWait) {
    Seat seat = new Seat(item, deadline, trace);
    if (!enter(seat, mayWait)) {
      FilaException refusal = room.await(item, deadline);
      if (refusal != null) {
        seat.completeExceptionally(refusal);
        return seat;
      }
      synchronized (lock) {
        if (freeSlots == 0) {
          sit(seat);
          return seat;
        }
        freeSlots--;
      }
      room.give(item.bytes());
      send(List.of(seat));
    }
    return seat;
  }

  /** Sends it, or lets it wait; false if there is no room to wait in. */
  private boolean enter(Seat seat, boolean mayWait) {
    synchronized (lock) {
      if (freeSlots == 0) {
        boolean hasRoom = room.take(seat.item.bytes());
        if (!hasRoom && mayWait) {
          return false;
        }
        if (!hasRoom) {
          room.force(seat.item.bytes());
        }
        sit(seat);
        return true;
      }
      freeSlots--;
    }
    send(List.of(seat));
    return true;
  }

  /** Sends items that belong together, by one request if there is a free slot and they fit. */
  List<CompletableFuture<T>> submitAll(
      List<Item<I>> items, Deadline deadline, Map<String, String> trace) {
    List<CompletableFuture<T>> seats = new ArrayList<>(items.size());
    synchronized (lock) {
      for (Item<I> item : items) {
        Seat seat = new Seat(item, deadline, trace);
        room.force(item.bytes());
        sit(seat);
        seats.add(seat);
      }
      if (freeSlots == 0) {
        return seats;
      }
      freeSlots--;
    }
    send(next());
    return seats;
  }

  private void sit(Seat seat) {
    waiting.add(seat);
    seat.timer = connection.at(seat.deadline, seat::expire);
  }

  int waitingCount() {
    synchronized (lock) {
      return waiting.size();
    }
  }

  /** Sends a batch, and what follows it as long as answers are there at once. */
  private void send(List<Seat> batch) {
    List<Seat> next = batch;
    while (next != null && !next.isEmpty()) {
      next = sendOne(next);
    }
  }

  /**
   * Sends a batch. Gives what is to be sent in its place, if it was answered before this returns;
   * else null. So failures that come at once, as after a close, never nest.
   */
  private List<Seat> sendOne(List<Seat> batch) {
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
    AtomicReference<List<Seat>> following = new AtomicReference<>();
    request.whenComplete(
        (outcomes, error) -> {
          // First the slot, then the answers: the next request should not wait for wake-ups.
          List<Seat> next = next();
          if (!following.compareAndSet(null, next)) {
            send(next);
          }
          Room.answering(() -> settle(batch, items, outcomes, error));
        });
    return following.compareAndSet(null, List.of()) ? null : following.get();
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

  private void settle(
      List<Seat> batch, List<Item<I>> items, List<Outcome<T>> outcomes, Throwable error) {
    if (error instanceof FilaException failure) {
      outcomes = BatchRpc.failed(items, failure, failure.getMessage());
    }
    for (int index = 0; index < batch.size(); index++) {
      batch.get(index).settle(outcomes == null ? null : outcomes.get(index), error);
    }
  }

  /** Who gets a slot that is free now: the next batch. If it is empty the slot is given back. */
  private List<Seat> next() {
    synchronized (lock) {
      List<Seat> batch = take();
      batch.forEach(seat -> seat.isSent = true);
      if (batch.isEmpty()) {
        freeSlots++;
      }
      return batch;
    }
  }

  /** Removes the next batch from the queue, and with it callers who no longer wait. */
  private List<Seat> take() {
    List<Seat> batch = new ArrayList<>();
    int bytes = 0;
    int freed = 0;
    while (!waiting.isEmpty() && batch.size() < BatchRpc.ITEMS_MAX) {
      Seat seat = waiting.peek();
      if (!seat.isDone()) {
        bytes += seat.item.bytes();
        if (!batch.isEmpty() && bytes > BatchRpc.BYTES_MAX) {
          break;
        }
        batch.add(seat);
      }
      freed += seat.item.bytes();
      waiting.remove();
    }
    room.give(freed);
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
      Room.answering(() -> completeExceptionally(Errors.fromStatus(tooLate)));
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

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.AckRequest;
import dev.faisca.fila.internal.v1.EnqueueRequest;
import dev.faisca.fila.internal.v1.LeaseExtension;
import dev.faisca.fila.internal.v1.NackRequest;
import io.grpc.Deadline;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.function.Predicate;

/**
 * A client's single calls: they share requests, what waits of them is bounded, each is repeated by
 * itself where that is harmless, and their answers can be waited for.
 */
final class Singles {
  private final Connection connection;
  private final Promises promises;
  private final Coalescer<EnqueueRequest, String> enqueues;
  private final Coalescer<AckRequest, Void> acks;
  private final Coalescer<NackRequest, Void> nacks;
  private final Coalescer<LeaseExtension, Instant> extensions;

  Singles(Connection connection, Promises promises) {
    this.connection = connection;
    this.promises = promises;
    Room room = new Room(connection.options().maxBufferedBytes());
    this.enqueues = new Coalescer<>(Wire.ENQUEUE, connection, room);
    this.acks = new Coalescer<>(Grants::ackTogether, connection, room);
    this.nacks = new Coalescer<>(Wire.NACK, connection, room);
    this.extensions = new Coalescer<>(Wire.EXTEND, connection, room);
  }

  Coalescer<EnqueueRequest, String> enqueues() {
    return enqueues;
  }

  CompletableFuture<String> enqueue(
      Item<EnqueueRequest> item, Duration timeout, Map<String, String> trace) {
    return send(enqueues, item, timeout, trace, true, error -> false);
  }

  /** An ack; one that may not wait for room is sent by a thread that others wait for. */
  CompletableFuture<Void> ack(Item<AckRequest> item, Duration timeout, boolean mayWait) {
    return send(acks, item, timeout, Tracing.current(), mayWait, Wire.ACK::isDoneBefore);
  }

  CompletableFuture<Void> nack(Item<NackRequest> item, Duration timeout, boolean mayWait) {
    return send(nacks, item, timeout, Tracing.current(), mayWait, Wire.NACK::isDoneBefore);
  }

  CompletableFuture<Instant> extend(Item<LeaseExtension> item, Duration timeout) {
    return send(extensions, item, timeout, Tracing.current(), true, error -> false);
  }

  /** Acks by one request, as far as they fit; never waits for room. */
  List<CompletableFuture<Void>> ackAll(List<Item<AckRequest>> items, Duration timeout) {
    if (connection.isClosing()) {
      return items.stream().map(this::<Void>refused).toList();
    }
    Map<String, String> trace = Tracing.current();
    Deadline deadline = Connection.deadline(timeout);
    List<CompletableFuture<Void>> first = acks.submitAll(items, deadline, trace);
    List<CompletableFuture<Void>> all = new ArrayList<>(items.size());
    for (int index = 0; index < items.size(); index++) {
      Item<AckRequest> item = items.get(index);
      CompletableFuture<Void> mine = first.get(index);
      CompletableFuture<Void> answer =
          Retrying.start(
              connection,
              item.isRepeatable(),
              deadline,
              attempt -> attempt == 0 ? mine : acks.submit(item, deadline, trace, false),
              Wire.ACK::isDoneBefore);
      answer.whenComplete(promises.begin());
      all.add(answer);
    }
    return all;
  }

  private <I, T> CompletableFuture<T> send(
      Coalescer<I, T> coalescer,
      Item<I> item,
      Duration timeout,
      Map<String, String> trace,
      boolean mayWait,
      Predicate<Throwable> isDoneBefore) {
    if (connection.isClosing()) {
      return refused(item);
    }
    Deadline deadline = Connection.deadline(timeout);
    // Before it is sent: who flushes meanwhile waits for it.
    Promises.Span begun = promises.begin();
    CompletableFuture<T> answer =
        Retrying.start(
            connection,
            item.isRepeatable(),
            deadline,
            attempt -> coalescer.submit(item, deadline, trace, mayWait && attempt == 0),
            isDoneBefore);
    answer.whenComplete(begun);
    return answer;
  }

  private <T> CompletableFuture<T> refused(Item<?> item) {
    return CompletableFuture.failedFuture(Connection.closed(item.queue(), item.messageId()));
  }
}

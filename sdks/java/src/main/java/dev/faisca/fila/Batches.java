// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.AckRequest;
import dev.faisca.fila.internal.v1.GrantSettlement;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** A client's calls about many messages: what is given becomes items, what is answered results. */
final class Batches {
  private final Connection connection;
  private final Promises promises;

  Batches(Connection connection, Promises promises) {
    this.connection = connection;
    this.promises = promises;
  }

  List<EnqueueResult> enqueue(Iterable<EnqueueMessage> messages, Duration timeout)
      throws FilaException {
    Map<String, String> trace = Tracing.current();
    List<EnqueueResult> results = new ArrayList<>();
    for (Outcome<EnqueueResult> outcome :
        send(Wire.ENQUEUE_MANY, messages, message -> Wire.enqueue(message, trace), timeout)) {
      results.add(
          outcome.error() == null
              ? outcome.value()
              : new EnqueueResult("", false, outcome.error()));
    }
    return results;
  }

  List<SettleResult> ack(Iterable<? extends Message> messages, Duration timeout)
      throws FilaException {
    List<Item<AckRequest>> items = new ArrayList<>();
    messages.forEach(m -> items.add(Wire.ack(m.queue(), m.id(), m.leaseToken(), m.frameSize())));
    List<String> ids = items.stream().map(Item::messageId).toList();
    Promises.Span begun = promises.begin();
    try {
      List<SettleResult> results = settled(ids, Grants.ackMany(connection, items, timeout));
      markSettled(messages, results);
      return results;
    } finally {
      begun.end();
    }
  }

  List<SettleResult> nack(Iterable<? extends Message> messages, String error, Duration timeout)
      throws FilaException {
    List<String> ids = new ArrayList<>();
    List<Outcome<Void>> outcomes =
        send(
            Wire.NACK,
            messages,
            (Message m) -> {
              ids.add(m.id());
              return Wire.nack(m.queue(), m.id(), m.leaseToken(), error, NackOptions.NONE);
            },
            timeout);
    List<SettleResult> results = settled(ids, outcomes);
    markSettled(messages, results);
    return results;
  }

  List<ExtendResult> extend(
      Iterable<? extends Message> messages, Duration duration, Duration timeout)
      throws FilaException {
    List<Message> all = new ArrayList<>();
    messages.forEach(all::add);
    List<Outcome<Instant>> outcomes =
        send(
            Wire.EXTEND,
            all,
            (Message m) -> Wire.extend(m.queue(), m.id(), m.leaseToken(), duration),
            timeout);
    List<ExtendResult> results = new ArrayList<>(all.size());
    for (int index = 0; index < all.size(); index++) {
      Outcome<Instant> outcome = outcomes.get(index);
      Message message = all.get(index);
      results.add(new ExtendResult(message.id(), outcome.value(), outcome.error()));
      if (outcome.error() == null && message instanceof ConsumeMessage delivered) {
        delivered.extendedUntil = outcome.value();
      }
    }
    return results;
  }

  Grants.Settled settle(Item<GrantSettlement> item, Duration timeout) throws FilaException {
    var outcome = send(Grants.SETTLE, List.of(item), same -> same, timeout).get(0);
    if (outcome.error() != null) {
      throw outcome.error();
    }
    return outcome.value();
  }

  private <M, I, T> List<Outcome<T>> send(
      BatchRpc<I, T> rpc,
      Iterable<? extends M> things,
      Function<M, Item<I>> encode,
      Duration timeout)
      throws FilaException {
    Iterator<? extends M> left = things.iterator();
    Iterator<Item<I>> items =
        new Iterator<>() {
          @Override
          public boolean hasNext() {
            return left.hasNext();
          }

          @Override
          public Item<I> next() {
            return encode.apply(left.next());
          }
        };
    Promises.Span begun = promises.begin();
    try {
      return Bulk.send(connection, rpc, items, timeout);
    } finally {
      begun.end();
    }
  }

  private static List<SettleResult> settled(List<String> ids, List<Outcome<Void>> outcomes) {
    List<SettleResult> results = new ArrayList<>(ids.size());
    for (int index = 0; index < ids.size(); index++) {
      results.add(new SettleResult(ids.get(index), outcomes.get(index).error()));
    }
    return results;
  }

  /** A worker leaves alone what its handler has settled. */
  private static void markSettled(
      Iterable<? extends Message> messages, List<SettleResult> results) {
    int index = 0;
    for (Message message : messages) {
      if (results.get(index++).error() == null && message instanceof ConsumeMessage delivered) {
        delivered.isSettled = true;
      }
    }
  }
}

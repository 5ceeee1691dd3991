// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.AckRequest;
import dev.faisca.fila.internal.v1.FilaServiceGrpc;
import dev.faisca.fila.internal.v1.GrantAck;
import dev.faisca.fila.internal.v1.GrantExtension;
import dev.faisca.fila.internal.v1.GrantNack;
import dev.faisca.fila.internal.v1.GrantSettlement;
import dev.faisca.fila.internal.v1.SettleGrantsRequest;
import dev.faisca.fila.internal.v1.SettleGrantsResponse;
import io.grpc.Deadline;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

/**
 * Whole frames: what is acked together, and came together, travels as one settlement of a grant.
 *
 * <p>A grant is what one delivery frame leases; its messages share a lease token. Acks of all of
 * them are the same as one settlement that expects exactly so many. Where the broker refuses that,
 * since some were settled before or their leases ended, each goes as an ack of its own and gets its
 * own answer. So nobody can tell the two ways apart, but for what they cost.
 */
final class Grants {
  /** How many messages were settled, and when extended leases end. */
  record Settled(int messages, Instant leaseExpiresAt) {}

  static final BatchRpc<GrantSettlement, Settled> SETTLE =
      BatchRpc.of(
          FilaServiceGrpc.getSettleGrantsMethod(),
          grants -> SettleGrantsRequest.newBuilder().addAllSettlements(grants).build(),
          SettleGrantsResponse::getResultsList,
          result -> result.hasError() ? result.getError() : null,
          result ->
              new Settled(result.getMessages(), Wire.instant(result.getLeaseExpiresAt())));

  private Grants() {}

  // --- Settlements ------------------------------------------------------------------------------

  static Item<GrantSettlement> ack(String queue, String leaseToken, Collection<String> except) {
    return item(of(queue, leaseToken, except).setAck(GrantAck.getDefaultInstance()), false);
  }

  static Item<GrantSettlement> nack(
      String queue,
      String leaseToken,
      String error,
      NackOptions options,
      Collection<String> except) {
    GrantNack.Builder nack =
        GrantNack.newBuilder()
            .setError(Wire.optional("error", error))
            .setThrottleKey(Wire.optional("throttleKey", options.throttleKey()))
            .setDeadLetter(options.deadLetter());
    if (options.retryAfter() != null) {
      nack.setRetryAfterMs(Wire.millis("retryAfter", options.retryAfter()));
    }
    return item(of(queue, leaseToken, except).setNack(nack), false);
  }

  static Item<GrantSettlement> extend(
      String queue, String leaseToken, Duration duration, Collection<String> except) {
    long extendMs = Wire.millis("duration", duration);
    return item(
        of(queue, leaseToken, except)
            .setExtend(GrantExtension.newBuilder().setExtendMs(extendMs)),
        true);
  }

  /** A frame's lease, for as long again. */
  static Item<GrantSettlement> extend(Lease lease) {
    return extend(lease.queue, lease.token, Duration.ofNanos(lease.nanos), List.of());
  }

  private static GrantSettlement.Builder of(
      String queue, String leaseToken, Collection<String> except) {
    return GrantSettlement.newBuilder()
        .setQueue(Wire.named("queue", queue))
        .setLeaseToken(Wire.named("leaseToken", leaseToken))
        .addAllExceptMessageIds(Wire.named("exceptMessageIds", except));
  }

  private static Item<GrantSettlement> item(GrantSettlement.Builder request, boolean isRepeatable) {
    return Wire.item(request.build(), request.getQueue(), null, isRepeatable);
  }

  // --- Frames -----------------------------------------------------------------------------------

  /** Acks of one request: those of whole frames by their grants. */
  static CompletableFuture<List<Outcome<Void>>> ackTogether(
      Connection connection,
      List<Item<AckRequest>> items,
      Deadline deadline,
      Map<String, String> trace) {
    Acks acks = new Acks(connection, items);
    if (acks.frames.isEmpty()) {
      return connection.send(Wire.ACK.call(items), deadline, trace);
    }
    Chain chain = new Chain();
    CompletableFuture<List<Outcome<Settled>>> settling =
        connection.send(SETTLE.call(acks.grants()), deadline, trace);
    chain.wait(settling);
    settling.whenComplete(
        (answers, error) -> {
          if (error != null && !(error instanceof UnimplementedException)) {
            chain.completeExceptionally(error);
            return;
          }
          List<Item<AckRequest>> rest = acks.rest(answers);
          if (rest.isEmpty()) {
            chain.complete(acks.all(List.of()));
            return;
          }
          CompletableFuture<List<Outcome<Void>>> acking =
              connection.send(Wire.ACK.call(rest), deadline, trace);
          chain.wait(acking);
          acking.whenComplete((found, failed) -> chain.finish(acks, rest, found, failed));
        });
    return chain;
  }

  /** Any number of acks: those of whole frames by their grants. */
  static List<Outcome<Void>> ackMany(
      Connection connection, List<Item<AckRequest>> items, Duration timeout)
      throws FilaException {
    connection.checkOpen();
    Acks acks = new Acks(connection, items);
    List<Outcome<Settled>> answers = new ArrayList<>();
    try {
      Bulk.Splitter<GrantSettlement> splitter = new Bulk.Splitter<>(acks.grants().iterator());
      for (var batch = splitter.next(); !batch.isEmpty(); batch = splitter.next()) {
        answers.addAll(connection.call(acks.settle(batch), timeout));
      }
    } catch (UnimplementedException unknown) {
      answers = null;
    } catch (FilaException error) {
      // Who interrupts the thread wants it to stop, and has no use for a list.
      if (Thread.currentThread().isInterrupted()) {
        throw error;
      }
      return BatchRpc.failed(items, error, error.getMessage());
    }
    List<Item<AckRequest>> rest = acks.rest(answers);
    List<Outcome<Void>> found = Bulk.send(connection, Wire.ACK, rest.iterator(), timeout);
    return acks.all(acks.isRepeated ? Wire.ACK.forgiven(found) : found);
  }

  /** Two requests, one after the other. Cancelling it cancels the one that is under way. */
  private static final class Chain extends CompletableFuture<List<Outcome<Void>>> {
    private CompletableFuture<?> underWay;

    synchronized void wait(CompletableFuture<?> request) {
      underWay = request;
      if (isCancelled()) {
        request.cancel(true);
      }
    }

    void finish(
        Acks acks, List<Item<AckRequest>> rest, List<Outcome<Void>> found, Throwable error) {
      // Frames were settled before: what this request fails with is that of its own acks alone.
      if (error instanceof FilaException failure) {
        complete(acks.all(BatchRpc.failed(rest, failure, failure.getMessage())));
      } else if (error != null) {
        completeExceptionally(error);
      } else {
        complete(acks.all(found));
      }
    }

    @Override
    public boolean cancel(boolean mayInterrupt) {
      boolean isFirst = super.cancel(mayInterrupt);
      synchronized (this) {
        underWay.cancel(mayInterrupt);
      }
      return isFirst;
    }
  }

  /** Acks, the whole frames among them, and what became of each. */
  private static final class Acks {
    private final Connection connection;
    private final List<Item<AckRequest>> items;
    private final List<List<Integer>> frames;
    private final Outcome<Void>[] found;
    // A settlement was sent again, so its messages may be gone because of the first one.
    private boolean isRepeated;

    @SuppressWarnings({"unchecked", "rawtypes"})
    Acks(Connection connection, List<Item<AckRequest>> items) {
      this.connection = connection;
      this.items = items;
      this.frames = connection.hasGrants() ? wholeFrames(items) : List.of();
      this.found = new Outcome[items.size()];
    }

    List<Item<GrantSettlement>> grants() {
      return frames.stream().map(this::grant).toList();
    }

    Call<?, ?, List<Outcome<Settled>>> settle(List<Item<GrantSettlement>> batch) {
      return SETTLE
          .call(batch)
          .afterRepeat(
              answers -> {
                isRepeated = true;
                return answers;
              });
    }

    private Item<GrantSettlement> grant(List<Integer> places) {
      AckRequest first = items.get(places.get(0)).request();
      return item(
          of(first.getQueue(), first.getLeaseToken(), List.of())
              .setExpectedMessages(places.size())
              .setAck(GrantAck.getDefaultInstance()),
          true);
    }

    /** What is to be sent one by one after the answers; null where the broker knows no grants. */
    List<Item<AckRequest>> rest(List<Outcome<Settled>> answers) {
      if (answers == null) {
        connection.forgetGrants();
        return items;
      }
      for (int index = 0; index < frames.size(); index++) {
        FilaException error = answers.get(index).error();
        if (error instanceof LeaseExpiredException) {
          continue;
        }
        for (int at : frames.get(index)) {
          Item<AckRequest> item = items.get(at);
          found[at] =
              error == null
                  ? new Outcome<>(null, null)
                  : BatchRpc.<AckRequest, Void>failed(List.of(item), error, error.getMessage())
                      .get(0);
        }
      }
      List<Item<AckRequest>> rest = new ArrayList<>();
      for (int at = 0; at < found.length; at++) {
        if (found[at] == null) {
          rest.add(items.get(at));
        }
      }
      return rest;
    }

    List<Outcome<Void>> all(List<Outcome<Void>> rest) {
      int next = 0;
      for (int at = 0; at < found.length; at++) {
        if (found[at] == null) {
          found[at] = rest.get(next++);
        }
      }
      return Arrays.asList(found);
    }
  }

  private record Key(String queue, String leaseToken) {}

  /** Where the acks are that make up whole frames, frame by frame. */
  private static List<List<Integer>> wholeFrames(List<Item<AckRequest>> items) {
    Map<Key, List<Integer>> frames = new LinkedHashMap<>();
    for (int at = 0; at < items.size(); at++) {
      Item<AckRequest> item = items.get(at);
      String token = item.request().getLeaseToken();
      if (item.frameSize() > 1 && !token.isEmpty()) {
        frames.computeIfAbsent(new Key(item.queue(), token), key -> new ArrayList<>()).add(at);
      }
    }
    return frames.values().stream().filter(places -> isWhole(items, places)).toList();
  }

  private static boolean isWhole(List<Item<AckRequest>> items, List<Integer> places) {
    if (places.size() != items.get(places.get(0)).frameSize()) {
      return false;
    }
    Set<String> ids = new HashSet<>();
    places.forEach(at -> ids.add(items.get(at).messageId()));
    return ids.size() == places.size();
  }
}

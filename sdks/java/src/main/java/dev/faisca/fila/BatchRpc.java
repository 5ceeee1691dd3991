// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.ErrorReason;
import dev.faisca.fila.internal.v1.ItemError;
import io.grpc.MethodDescriptor;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.function.UnaryOperator;

/** An RPC that takes many items of a kind and answers each on its own, with a T. */
final class BatchRpc<I, T> {
  // More are faster, but a batch holds the broker's engine, and everybody else waits behind it.
  static final int ITEMS_MAX = 1000;
  // Below gRPC's customary 4 MiB, so that any broker takes it. A larger message travels alone.
  static final int BYTES_MAX = 1 << 20;

  private static final String REASON_PREFIX = "ERROR_REASON_";

  private final Function<List<Item<I>>, Call<?, ?, List<Outcome<T>>>> prepare;
  // What of a repeated item says that its first try was applied.
  private final Predicate<FilaException> isDoneBefore;

  private BatchRpc(
      Function<List<Item<I>>, Call<?, ?, List<Outcome<T>>>> prepare,
      Predicate<FilaException> isDoneBefore) {
    this.prepare = prepare;
    this.isDoneBefore = isDoneBefore;
  }

  /**
   * An RPC by its parts: how items become a request, where its answer keeps the results, and what
   * each result says.
   */
  static <I, Q, A, R, T> BatchRpc<I, T> of(
      MethodDescriptor<Q, A> method,
      Function<List<I>, Q> join,
      Function<A, List<R>> results,
      Function<R, ItemError> error,
      Function<R, T> read) {
    return new BatchRpc<>(
        items ->
            new Call<>(
                method,
                join.apply(items.stream().map(Item::request).toList()),
                answer -> outcomes(results.apply(answer), items, error, read),
                null,
                null,
                items.stream().allMatch(Item::isRepeatable),
                UnaryOperator.identity()),
        none -> false);
  }

  /** The same, where some errors of a repeated item mean that its first try was applied. */
  BatchRpc<I, T> doneBefore(Predicate<FilaException> isDoneBefore) {
    return new BatchRpc<>(prepare, isDoneBefore);
  }

  boolean isDoneBefore(Throwable error) {
    return error instanceof FilaException failure && isDoneBefore.test(failure);
  }

  /** The request that holds the items; it answers with one outcome for each, in order. */
  Call<?, ?, List<Outcome<T>>> call(List<Item<I>> items) {
    return prepare.apply(items).afterRepeat(this::forgiven);
  }

  /** The outcomes of a repeat. */
  List<Outcome<T>> forgiven(List<Outcome<T>> outcomes) {
    return outcomes.stream()
        .map(found -> isDoneBefore(found.error()) ? new Outcome<T>(null, null) : found)
        .toList();
  }

  /** The error of a whole request as the outcome of each of its items. */
  static <I, T> List<Outcome<T>> failed(List<Item<I>> items, FilaException error, String text) {
    List<Outcome<T>> outcomes = new ArrayList<>(items.size());
    for (Item<I> item : items) {
      outcomes.add(new Outcome<>(null, Errors.about(error, text, item.queue(), item.messageId())));
    }
    return outcomes;
  }

  private static <I, R, T> List<Outcome<T>> outcomes(
      List<R> results, List<Item<I>> items, Function<R, ItemError> error, Function<R, T> read) {
    List<Outcome<T>> outcomes = new ArrayList<>(items.size());
    for (int index = 0; index < items.size(); index++) {
      Item<I> item = items.get(index);
      if (results.size() != items.size()) {
        String text =
            "the broker gave %d results for %d items".formatted(results.size(), items.size());
        outcomes.add(new Outcome<>(null, Errors.fromReason("INTERNAL", text, item.queue(), null)));
        continue;
      }
      R result = results.get(index);
      ItemError refusal = error.apply(result);
      outcomes.add(
          refusal == null
              ? new Outcome<>(read.apply(result), null)
              : new Outcome<>(
                  null,
                  refusal(refusal, refusal.getMessage(), item.queue(), item.messageId())));
    }
    return outcomes;
  }

  /** The exception that a refusal in an answer stands for. */
  static FilaException refusal(ItemError error, String text, String queue, String messageId) {
    // A broker that is newer than this SDK may send a number without a name.
    String reason =
        error.getReason() == ErrorReason.UNRECOGNIZED
            ? String.valueOf(error.getReasonValue())
            : error.getReason().name().substring(REASON_PREFIX.length());
    return Errors.fromReason(reason, text, queue, messageId);
  }
}

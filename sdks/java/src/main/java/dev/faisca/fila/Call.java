// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.MethodDescriptor;
import java.util.function.Function;
import java.util.function.UnaryOperator;

/**
 * One unary call that is ready to be sent, and how to read its answer.
 *
 * @param queue what an error should name; null if the call names no queue
 * @param messageId what an error should name; null if the call names no message
 * @param isRepeatable whether it may be sent again after a failure that leaves open if it was
 *     applied
 * @param afterRepeat what the answer to a repeat really says, since the first one may have been
 *     applied
 */
record Call<Q, A, T>(
    MethodDescriptor<Q, A> method,
    Q request,
    Function<A, T> read,
    String queue,
    String messageId,
    boolean isRepeatable,
    UnaryOperator<T> afterRepeat) {

  static <Q, A, T> Call<Q, A, T> once(
      MethodDescriptor<Q, A> method, Q request, Function<A, T> read, String queue) {
    return new Call<>(method, request, read, queue, null, false, UnaryOperator.identity());
  }

  static <Q, A, T> Call<Q, A, T> repeatable(
      MethodDescriptor<Q, A> method, Q request, Function<A, T> read, String queue) {
    return new Call<>(method, request, read, queue, null, true, UnaryOperator.identity());
  }

  /** The same with another reading of what a repeat answers. */
  Call<Q, A, T> afterRepeat(UnaryOperator<T> reading) {
    return new Call<>(method, request, read, queue, messageId, isRepeatable, reading);
  }

  /** The same about one message. */
  Call<Q, A, T> about(String messageId) {
    return new Call<>(method, request, read, queue, messageId, isRepeatable, afterRepeat);
  }
}

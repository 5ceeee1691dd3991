// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;

/** The answer of one request under way. Cancelling it cancels the request. */
final class Reply<A, T> extends CompletableFuture<T> implements StreamObserver<A> {
  private final ClientCall<?, ?> call;
  private final Function<A, T> read;
  private final Function<Rejection, FilaException> explain;
  private A answer;

  /** What gRPC says of a request that failed. */
  record Rejection(Status status, Metadata trailers) {}

  Reply(ClientCall<?, ?> call, Function<A, T> read, Function<Rejection, FilaException> explain) {
    this.call = call;
    this.read = read;
    this.explain = explain;
  }

  @Override
  public void onNext(A answer) {
    this.answer = answer;
  }

  @Override
  public void onError(Throwable error) {
    Metadata trailers = Status.trailersFromThrowable(error);
    completeExceptionally(explain.apply(new Rejection(Status.fromThrowable(error), trailers)));
  }

  @Override
  public void onCompleted() {
    try {
      complete(read.apply(answer));
    } catch (RuntimeException defect) {
      completeExceptionally(defect);
    }
  }

  @Override
  public boolean cancel(boolean mayInterrupt) {
    boolean isFirst = super.cancel(mayInterrupt);
    call.cancel("cancelled by the caller", null);
    return isFirst;
  }
}

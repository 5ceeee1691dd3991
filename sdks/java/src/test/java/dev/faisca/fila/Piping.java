// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import com.google.protobuf.Descriptors.FieldDescriptor;
import dev.faisca.fila.internal.v1.ErrorReason;
import dev.faisca.fila.internal.v1.PipelineRequest;
import dev.faisca.fila.internal.v1.PipelineResponse;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;

/**
 * A pipeline at the scripted broker. Requests overlap and answers leave in order. A refusal that
 * has a reason is the request's; one without is a failure of the connection, and ends the stream.
 */
final class Piping implements StreamObserver<PipelineRequest> {
  /** What a request is handed to, under the name of the call that it stands for. */
  interface Handler {
    void handle(String method, Object request, StreamObserver<Object> observer);
  }

  private static final Map<String, String> METHODS =
      Map.of(
          "enqueue", "EnqueueBatch",
          "ack", "AckBatch",
          "nack", "NackBatch",
          "extend", "ExtendLease",
          "settle", "SettleGrants");
  private static final Metadata.Key<String> REASON =
      Metadata.Key.of("fila-reason", Metadata.ASCII_STRING_MARSHALLER);

  final CountDownLatch halfClosed = new CountDownLatch(1);
  final CountDownLatch cancelled = new CountDownLatch(1);
  private final ServerCallStreamObserver<PipelineResponse> out;
  private final List<ScriptedBroker.Seen> seen;
  private final Metadata metadata;
  private final Handler handler;
  private final Executor executor;
  private CompletableFuture<Void> last = CompletableFuture.completedFuture(null);
  private boolean isEnded;

  Piping(
      StreamObserver<PipelineResponse> out,
      List<ScriptedBroker.Seen> seen,
      Metadata metadata,
      Handler handler,
      Executor executor) {
    this.seen = seen;
    this.metadata = metadata;
    this.out = (ServerCallStreamObserver<PipelineResponse>) out;
    this.handler = handler;
    this.executor = executor;
    this.out.setOnCancelHandler(cancelled::countDown);
  }

  @Override
  public void onNext(PipelineRequest request) {
    FieldDescriptor field = request.getAllFields().keySet().iterator().next();
    String method = METHODS.get(field.getName());
    Object inner = request.getField(field);
    seen.add(new ScriptedBroker.Seen(method, inner, metadata, null, this));
    CompletableFuture<Object> answer = new CompletableFuture<>();
    executor.execute(() -> handler.handle(method, inner, observer(answer)));
    last =
        last.thenCompose(done -> answer)
            .handle(
                (value, error) -> {
                  reply(field.getName(), value, error);
                  return null;
                });
  }

  private static StreamObserver<Object> observer(CompletableFuture<Object> answer) {
    return new StreamObserver<>() {
      @Override
      public void onNext(Object value) {
        answer.complete(value);
      }

      @Override
      public void onError(Throwable error) {
        answer.completeExceptionally(error);
      }

      @Override
      public void onCompleted() {}
    };
  }

  private void reply(String field, Object value, Throwable error) {
    if (error == null) {
      var known = PipelineResponse.getDescriptor().findFieldByName(field);
      send(PipelineResponse.newBuilder().setField(known, value).build());
      return;
    }
    Throwable cause = error.getCause() == null ? error : error.getCause();
    Metadata trailers = Status.trailersFromThrowable(cause);
    String reason = trailers == null ? null : trailers.get(REASON);
    if (reason == null) {
      end(cause);
      return;
    }
    PipelineResponse.Builder refusal = PipelineResponse.newBuilder();
    refusal
        .getErrorBuilder()
        .setReason(ErrorReason.valueOf("ERROR_REASON_" + reason))
        .setMessage(Status.fromThrowable(cause).getDescription());
    send(refusal.build());
  }

  synchronized void send(PipelineResponse answer) {
    if (!isEnded && !out.isCancelled()) {
      out.onNext(answer);
    }
  }

  /** Ends the stream; null for OK. */
  synchronized void end(Throwable error) {
    if (isEnded || out.isCancelled()) {
      return;
    }
    isEnded = true;
    if (error == null) {
      out.onCompleted();
    } else {
      out.onError(error);
    }
  }

  @Override
  public void onError(Throwable gone) {}

  @Override
  public void onCompleted() {
    halfClosed.countDown();
    last.whenComplete((value, error) -> end(null));
  }
}

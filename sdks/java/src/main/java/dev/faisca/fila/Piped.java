// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.AckBatchRequest;
import dev.faisca.fila.internal.v1.AckBatchResponse;
import dev.faisca.fila.internal.v1.EnqueueBatchRequest;
import dev.faisca.fila.internal.v1.EnqueueBatchResponse;
import dev.faisca.fila.internal.v1.ExtendLeaseRequest;
import dev.faisca.fila.internal.v1.ExtendLeaseResponse;
import dev.faisca.fila.internal.v1.FilaServiceGrpc;
import dev.faisca.fila.internal.v1.NackBatchRequest;
import dev.faisca.fila.internal.v1.NackBatchResponse;
import dev.faisca.fila.internal.v1.PipelineRequest;
import dev.faisca.fila.internal.v1.PipelineResponse;
import dev.faisca.fila.internal.v1.SettleGrantsRequest;
import dev.faisca.fila.internal.v1.SettleGrantsResponse;
import io.grpc.MethodDescriptor;
import java.util.Map;
import java.util.function.BiConsumer;
import java.util.function.Function;

/** How the requests and answers of one batch call look inside a pipeline. */
record Piped<Q, A>(
    BiConsumer<PipelineRequest.Builder, Q> put,
    PipelineResponse.AnswerCase kind,
    Function<PipelineResponse, A> get) {

  private static final Map<MethodDescriptor<?, ?>, Piped<?, ?>> CALLS =
      Map.of(
          FilaServiceGrpc.getEnqueueBatchMethod(),
          new Piped<EnqueueBatchRequest, EnqueueBatchResponse>(
              PipelineRequest.Builder::setEnqueue,
              PipelineResponse.AnswerCase.ENQUEUE,
              PipelineResponse::getEnqueue),
          FilaServiceGrpc.getAckBatchMethod(),
          new Piped<AckBatchRequest, AckBatchResponse>(
              PipelineRequest.Builder::setAck,
              PipelineResponse.AnswerCase.ACK,
              PipelineResponse::getAck),
          FilaServiceGrpc.getNackBatchMethod(),
          new Piped<NackBatchRequest, NackBatchResponse>(
              PipelineRequest.Builder::setNack,
              PipelineResponse.AnswerCase.NACK,
              PipelineResponse::getNack),
          FilaServiceGrpc.getExtendLeaseMethod(),
          new Piped<ExtendLeaseRequest, ExtendLeaseResponse>(
              PipelineRequest.Builder::setExtend,
              PipelineResponse.AnswerCase.EXTEND,
              PipelineResponse::getExtend),
          FilaServiceGrpc.getSettleGrantsMethod(),
          new Piped<SettleGrantsRequest, SettleGrantsResponse>(
              PipelineRequest.Builder::setSettle,
              PipelineResponse.AnswerCase.SETTLE,
              PipelineResponse::getSettle));

  /** What is known of a call; null where pipelines carry no such call. */
  @SuppressWarnings("unchecked")
  static <Q, A> Piped<Q, A> of(MethodDescriptor<Q, A> method) {
    return (Piped<Q, A>) CALLS.get(method);
  }

  boolean isEnqueue() {
    return kind == PipelineResponse.AnswerCase.ENQUEUE;
  }

  PipelineRequest wrap(Q request) {
    PipelineRequest.Builder wrapped = PipelineRequest.newBuilder();
    put.accept(wrapped, request);
    return wrapped.build();
  }
}

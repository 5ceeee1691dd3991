// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import com.google.protobuf.CodedOutputStream;
import com.google.protobuf.MessageLite;
import com.google.protobuf.Timestamp;
import dev.faisca.fila.internal.v1.AckBatchRequest;
import dev.faisca.fila.internal.v1.AckBatchResponse;
import dev.faisca.fila.internal.v1.AckRequest;
import dev.faisca.fila.internal.v1.ConsumeRequest;
import dev.faisca.fila.internal.v1.EnqueueBatchRequest;
import dev.faisca.fila.internal.v1.EnqueueBatchResponse;
import dev.faisca.fila.internal.v1.EnqueueRequest;
import dev.faisca.fila.internal.v1.ExtendLeaseRequest;
import dev.faisca.fila.internal.v1.ExtendLeaseResponse;
import dev.faisca.fila.internal.v1.FilaServiceGrpc;
import dev.faisca.fila.internal.v1.ItemError;
import dev.faisca.fila.internal.v1.ItemResult;
import dev.faisca.fila.internal.v1.LeaseExtension;
import dev.faisca.fila.internal.v1.NackBatchRequest;
import dev.faisca.fila.internal.v1.NackBatchResponse;
import dev.faisca.fila.internal.v1.NackRequest;
import dev.faisca.fila.internal.v1.ReceiveRequest;
import java.time.Duration;
import java.time.Instant;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;

/** The hot path's requests and answers, and how values cross over to the contract. No I/O. */
final class Wire {
  /** Single enqueues: what a caller waits for is the id. */
  static final BatchRpc<EnqueueRequest, String> ENQUEUE =
      enqueueBatch(dev.faisca.fila.internal.v1.EnqueueResult::getMessageId);

  static final BatchRpc<EnqueueRequest, EnqueueResult> ENQUEUE_MANY =
      enqueueBatch(row -> new EnqueueResult(row.getMessageId(), row.getDuplicate(), null));

  static final BatchRpc<AckRequest, Void> ACK =
      BatchRpc.<AckRequest, AckBatchRequest, AckBatchResponse, ItemResult, Void>of(
              FilaServiceGrpc.getAckBatchMethod(),
              acks -> AckBatchRequest.newBuilder().addAllAcks(acks).build(),
              AckBatchResponse::getResultsList,
              Wire::refusal,
              result -> null)
          // It is gone, as it should be.
          .doneBefore(error -> error instanceof MessageNotFoundException);

  static final BatchRpc<NackRequest, Void> NACK =
      BatchRpc.<NackRequest, NackBatchRequest, NackBatchResponse, ItemResult, Void>of(
              FilaServiceGrpc.getNackBatchMethod(),
              nacks -> NackBatchRequest.newBuilder().addAllNacks(nacks).build(),
              NackBatchResponse::getResultsList,
              Wire::refusal,
              result -> null)
          // It may be gone, or be leased to somebody else, because it was nacked.
          .doneBefore(
              error ->
                  error instanceof MessageNotFoundException
                      || error instanceof LeaseExpiredException);

  static final BatchRpc<LeaseExtension, Instant> EXTEND =
      BatchRpc.of(
          FilaServiceGrpc.getExtendLeaseMethod(),
          extensions -> ExtendLeaseRequest.newBuilder().addAllExtensions(extensions).build(),
          ExtendLeaseResponse::getResultsList,
          result -> result.hasError() ? result.getError() : null,
          result -> instant(result.getLeaseExpiresAt()));

  private static final int ERROR_BYTES_MAX = 4096;
  private static final int REPLACEMENT = 0xfffd;

  private Wire() {}

  private static <T> BatchRpc<EnqueueRequest, T> enqueueBatch(
      Function<dev.faisca.fila.internal.v1.EnqueueResult, T> read) {
    return BatchRpc.of(
        FilaServiceGrpc.getEnqueueBatchMethod(),
        messages -> EnqueueBatchRequest.newBuilder().addAllMessages(messages).build(),
        EnqueueBatchResponse::getResultsList,
        result -> result.hasError() ? result.getError() : null,
        read);
  }

  private static ItemError refusal(ItemResult result) {
    return result.hasError() ? result.getError() : null;
  }

  // --- Items ------------------------------------------------------------------------------------

  static Item<EnqueueRequest> enqueue(EnqueueMessage message, Map<String, String> trace) {
    EnqueueRequest request = message.request();
    // A producer's own trace context wins: the message may continue a trace begun elsewhere.
    if (!trace.isEmpty() && !request.containsHeaders(Tracing.TRACEPARENT)) {
      request = request.toBuilder().putAllHeaders(trace).build();
    }
    return item(request, request.getQueue(), null, !request.getIdempotencyKey().isEmpty());
  }

  static Item<AckRequest> ack(String queue, String messageId, String leaseToken, int frameSize) {
    AckRequest request =
        AckRequest.newBuilder()
            .setQueue(named("queue", queue))
            .setMessageId(named("messageId", messageId))
            .setLeaseToken(optional("leaseToken", leaseToken))
            .build();
    int bytes = CodedOutputStream.computeMessageSize(1, request);
    return new Item<>(request, bytes, queue, messageId, hasToken(leaseToken), frameSize);
  }

  static Item<NackRequest> nack(
      String queue, String messageId, String leaseToken, String error, NackOptions options) {
    NackRequest.Builder request =
        NackRequest.newBuilder()
            .setQueue(named("queue", queue))
            .setMessageId(named("messageId", messageId))
            .setLeaseToken(optional("leaseToken", leaseToken))
            .setError(optional("error", error))
            .setThrottleKey(optional("throttleKey", options.throttleKey()))
            .setDeadLetter(options.deadLetter());
    if (options.retryAfter() != null) {
      request.setRetryAfterMs(millis("retryAfter", options.retryAfter()));
    }
    return item(request.build(), queue, messageId, hasToken(leaseToken));
  }

  static Item<LeaseExtension> extend(
      String queue, String messageId, String leaseToken, Duration duration) {
    LeaseExtension request =
        LeaseExtension.newBuilder()
            .setQueue(named("queue", queue))
            .setMessageId(named("messageId", messageId))
            .setLeaseToken(optional("leaseToken", leaseToken))
            .setExtendMs(millis("duration", duration))
            .build();
    return item(request, queue, messageId, hasToken(leaseToken));
  }

  /** A token ends with its delivery, so what carries one can be sent twice. */
  private static boolean hasToken(String leaseToken) {
    return leaseToken != null && !leaseToken.isEmpty();
  }

  /** Gives back a message that nobody has seen: ready at once, with no attempt counted. */
  static Item<NackRequest> release(Message message) {
    NackOptions atOnce = NackOptions.NONE.withRetryAfter(Duration.ZERO);
    return nack(message.queue(), message.id(), message.leaseToken(), "", atOnce);
  }

  static <I extends MessageLite> Item<I> item(
      I request, String queue, String messageId, boolean isRepeatable) {
    // Every batch request of the contract holds its items in the field with the number 1.
    int bytes = CodedOutputStream.computeMessageSize(1, request);
    return new Item<>(request, bytes, queue, messageId, isRepeatable, 0);
  }

  // --- Requests ---------------------------------------------------------------------------------

  static ConsumeRequest consume(String queue, ConsumeOptions options) {
    return ConsumeRequest.newBuilder()
        .setQueue(named("queue", queue))
        .setMaxInFlight(options.maxInFlight())
        .setMaxBatch(options.batchSize())
        .setVisibilityTimeoutMs(millis("visibilityTimeout", options.visibilityTimeout()))
        .build();
  }

  static Call<?, ?, List<ConsumeMessage>> receive(
      String queue, int maxMessages, Duration wait, Duration visibilityTimeout, FilaClient client) {
    ReceiveRequest request =
        ReceiveRequest.newBuilder()
            .setQueue(named("queue", queue))
            .setMaxMessages(count("maxMessages", maxMessages))
            .setWaitMs(millis("wait", wait))
            .setVisibilityTimeoutMs(millis("visibilityTimeout", visibilityTimeout))
            .build();
    // A second try would lease other messages, and those of a lost answer would wait for nobody.
    return Call.once(
        FilaServiceGrpc.getReceiveMethod(),
        request,
        answer ->
            answer.getMessagesList().stream()
                .map(raw -> new ConsumeMessage(raw, client, answer.getMessagesCount()))
                .toList(),
        queue);
  }

  // --- Values -----------------------------------------------------------------------------------

  /** A text that must be there, and that can be told in UTF-8. */
  static String named(String name, String value) {
    Objects.requireNonNull(value, () -> name + " must not be null");
    int at = brokenAt(value);
    if (at >= 0) {
      // Encoding it would quietly make a question mark of it.
      throw new IllegalArgumentException(
          "%s is no text: half of a surrogate pair at %d".formatted(name, at));
    }
    return value;
  }

  static Collection<String> named(String name, Collection<String> values) {
    values.forEach(value -> named(name, value));
    return values;
  }

  /** A text that may be missing. */
  static String optional(String name, String value) {
    return value == null ? "" : named(name, value);
  }

  static String orEmpty(String value) {
    return value == null ? "" : value;
  }

  /** Where half of a surrogate pair is; -1 for none. */
  private static int brokenAt(String text) {
    for (int at = 0; at < text.length(); at++) {
      if (Character.isSurrogate(text.charAt(at))) {
        if (Character.charCount(text.codePointAt(at)) == 1) {
          return at;
        }
        at++;
      }
    }
    return -1;
  }

  /** What went wrong, in others' words: always a text, and no longer than the broker keeps. */
  static String shown(String text) {
    StringBuilder shown = new StringBuilder();
    int bytes = 0;
    for (int at = 0; at < text.length(); ) {
      int point = text.codePointAt(at);
      at += Character.charCount(point);
      int kept = Character.getType(point) == Character.SURROGATE ? REPLACEMENT : point;
      bytes += kept < 0x80 ? 1 : kept < 0x800 ? 2 : kept < 0x10000 ? 3 : 4;
      if (bytes > ERROR_BYTES_MAX) {
        break;
      }
      shown.appendCodePoint(kept);
    }
    return shown.toString();
  }

  static int count(String name, int value) {
    return (int) count(name, (long) value);
  }

  static long count(String name, long value) {
    if (value < 0) {
      throw new IllegalArgumentException(name + " must not be negative, got " + value);
    }
    return value;
  }

  /**
   * Whole milliseconds, rounded up so that a short time is not none at all; null is 0, which leaves
   * the choice to the broker.
   */
  static long millis(String name, Duration value) {
    if (value == null) {
      return 0;
    }
    if (value.isNegative()) {
      throw new IllegalArgumentException(name + " must not be negative, got " + value);
    }
    return value.plusNanos(999_999).toMillis();
  }

  static Instant instant(Timestamp timestamp) {
    return Instant.ofEpochSecond(timestamp.getSeconds(), timestamp.getNanos());
  }

  static Instant moment(boolean isSet, Timestamp timestamp) {
    return isSet ? instant(timestamp) : null;
  }

  static Timestamp timestamp(Instant instant) {
    return Timestamp.newBuilder()
        .setSeconds(instant.getEpochSecond())
        .setNanos(instant.getNano())
        .build();
  }
}

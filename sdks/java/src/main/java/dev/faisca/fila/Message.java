// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.MessageTimestamps;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.List;
import java.util.Map;

/**
 * A message as the broker holds it. {@link FilaClient#peek} shows these; they cannot be settled.
 */
public sealed class Message permits ConsumeMessage {
  private final dev.faisca.fila.internal.v1.Message raw;

  Message(dev.faisca.fila.internal.v1.Message raw) {
    this.raw = raw;
  }

  /** How many messages came together with this one; 0 if nobody knows. */
  int frameSize() {
    return 0;
  }

  /** Assigned by the broker: unique for ever, ordered by time of enqueue. */
  public final String id() {
    return raw.getId();
  }

  /** The queue that holds the message. */
  public final String queue() {
    return raw.getMetadata().getQueueId();
  }

  /** What the producer attached; cannot be changed. */
  public final Map<String, String> headers() {
    return raw.getHeadersMap();
  }

  /** The payload, a copy with each call. */
  public final byte[] payload() {
    return raw.getPayload().toByteArray();
  }

  /** The payload without a copy, as a view that cannot be written to; a new one with each call. */
  public final ByteBuffer payloadBuffer() {
    return raw.getPayload().asReadOnlyByteBuffer();
  }

  /**
   * The payload as a text. Fails with UncheckedIOException that names the message when it is not
   * UTF-8.
   */
  public final String text() {
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(payloadBuffer()).toString();
    } catch (CharacterCodingException broken) {
      throw new UncheckedIOException(
          "the payload of message \"%s\" is not UTF-8".formatted(id()), broken);
    }
  }

  /**
   * The payload as your JSON library reads it: {@code message.json(Order.class,
   * mapper::readValue)} with Jackson, {@code gson::fromJson} with Gson. Fails as {@link #text}
   * does, and in the same way when the library cannot read it.
   */
  public final <T> T json(Class<T> type, JsonReader<T> reader) {
    String json = text();
    try {
      return reader.read(json, type);
    } catch (Exception broken) {
      String text =
          "the payload of message \"%s\" is no JSON of %s".formatted(id(), type.getSimpleName());
      throw new UncheckedIOException(
          text, broken instanceof IOException cause ? cause : new IOException(broken));
    }
  }

  /** Who the message belongs to; "default" when nobody said. */
  public final String fairnessKey() {
    return raw.getMetadata().getFairnessKey();
  }

  /** The share of the fairness key relative to the others in the queue. */
  public final int weight() {
    return raw.getMetadata().getWeight();
  }

  /** The limits that a delivery takes tokens from; cannot be changed. */
  public final List<String> throttleKeys() {
    return raw.getMetadata().getThrottleKeysList();
  }

  /** Failed or expired deliveries so far: 0 on the first delivery, 0 again after a redrive. */
  public final int attemptCount() {
    return raw.getMetadata().getAttemptCount();
  }

  /** Proof of this delivery; empty on a message that is not leased. */
  public final String leaseToken() {
    return raw.getMetadata().getLeaseToken();
  }

  /** What the most recent nack said, or "lease expired"; empty when nothing has failed. */
  public final String lastError() {
    return raw.getMetadata().getLastError();
  }

  /** The last five failures, oldest first; a redrive keeps them. Cannot be changed. */
  public final List<Failure> failures() {
    return AdminAnswers.failures(raw.getMetadata().getFailuresList());
  }

  /** When the broker accepted the message; null if it does not say. */
  public final Instant enqueuedAt() {
    MessageTimestamps times = raw.getTimestamps();
    return Wire.moment(times.hasEnqueuedAt(), times.getEnqueuedAt());
  }

  /** When this delivery's lease ends unless it is extended; null on one that is not leased. */
  public Instant leaseExpiresAt() {
    MessageTimestamps times = raw.getTimestamps();
    return Wire.moment(times.hasLeaseExpiresAt(), times.getLeaseExpiresAt());
  }

  /** Neither payload nor headers, which must not end up in a log by accident. */
  @Override
  public final String toString() {
    return "%s(id=%s, queue=%s, fairnessKey=%s, attemptCount=%d)"
        .formatted(getClass().getSimpleName(), id(), queue(), fairnessKey(), attemptCount());
  }
}

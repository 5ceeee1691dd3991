// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import com.google.protobuf.ByteString;
import dev.faisca.fila.internal.v1.EnqueueRequest;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.util.Collection;
import java.util.Map;
import java.util.Objects;

/**
 * One message to enqueue. Immutable; {@code EnqueueMessage.to("orders").payload(bytes).build()}.
 * What is not set is left to the broker, or to the queue's on_enqueue hook.
 */
public final class EnqueueMessage {
  private final EnqueueRequest request;

  private EnqueueMessage(EnqueueRequest request) {
    this.request = request;
  }

  /** Begins a message for a queue. */
  public static Builder to(String queue) {
    return new Builder(queue);
  }

  /** The queue that takes the message. */
  public String queue() {
    return request.getQueue();
  }

  EnqueueRequest request() {
    return request;
  }

  /** Names the queue; neither payload nor headers, which must not end up in a log by accident. */
  @Override
  public String toString() {
    return "EnqueueMessage(queue="
        + queue()
        + ", payload of "
        + request.getPayload().size()
        + " B)";
  }

  /** Collects what a message is made of. Negative numbers fail with IllegalArgumentException. */
  public static final class Builder {
    private final EnqueueRequest.Builder request = EnqueueRequest.newBuilder();

    private Builder(String queue) {
      request.setQueue(Wire.named("queue", queue));
    }

    /** Adds a header. */
    public Builder header(String key, String value) {
      request.putHeaders(Wire.named("key", key), Wire.named("the value of header " + key, value));
      return this;
    }

    /** Adds headers. */
    public Builder headers(Map<String, String> headers) {
      headers.forEach(this::header);
      return this;
    }

    /** Sets the payload, which is copied. */
    public Builder payload(byte[] payload) {
      request.setPayload(ByteString.copyFrom(Objects.requireNonNull(payload, "payload")));
      return this;
    }

    /** Sets the payload to what remains in a buffer, which is copied and left where it is. */
    public Builder payload(ByteBuffer payload) {
      request.setPayload(ByteString.copyFrom(payload.duplicate()));
      return this;
    }

    /** Sets the payload to a text, as UTF-8. */
    public Builder text(String text) {
      request.setPayload(ByteString.copyFromUtf8(Wire.named("text", text)));
      return this;
    }

    /**
     * Sets the payload to what your JSON library makes of a value: {@code json(order,
     * mapper::writeValueAsString)} with Jackson, {@code gson::toJson} with Gson. Fails with
     * IllegalArgumentException when it cannot.
     */
    public <T> Builder json(T value, JsonWriter<? super T> writer) {
      try {
        return text(writer.write(value));
      } catch (Exception broken) {
        throw new IllegalArgumentException("the payload cannot be written as JSON", broken);
      }
    }

    /** Sets who the message belongs to; keys with messages waiting take turns. */
    public Builder fairnessKey(String fairnessKey) {
      request.setFairnessKey(Wire.named("fairnessKey", fairnessKey));
      return this;
    }

    /** Sets the share of the fairness key, 1 to 1000. */
    public Builder weight(int weight) {
      request.setWeight(Wire.count("weight", weight));
      return this;
    }

    /** Adds limits that a delivery takes tokens from, all or none. */
    public Builder throttleKeys(Collection<String> throttleKeys) {
      request.addAllThrottleKeys(Wire.named("throttleKeys", throttleKeys));
      return this;
    }

    /** Sets how many tokens a delivery takes of each throttle key. */
    public Builder throttleCost(int throttleCost) {
      request.setThrottleCost(Wire.count("throttleCost", throttleCost));
      return this;
    }

    /** Delivers the message only after this time. Excludes {@link #deliverAt}. */
    public Builder delay(Duration delay) {
      request.setDelayMs(Wire.millis("delay", delay));
      return this;
    }

    /** Delivers the message only from this time on. Excludes {@link #delay}. */
    public Builder deliverAt(Instant deliverAt) {
      request.setDeliverAt(Wire.timestamp(deliverAt));
      return this;
    }

    /** Drops the message if it was not delivered within this time. */
    public Builder ttl(Duration ttl) {
      request.setTtlMs(Wire.millis("ttl", ttl));
      return this;
    }

    /**
     * Makes a second enqueue with the same key store nothing and return the first one's id. Only
     * with it does the client send a message again while the broker is away.
     */
    public Builder idempotencyKey(String idempotencyKey) {
      request.setIdempotencyKey(Wire.named("idempotencyKey", idempotencyKey));
      return this;
    }

    /** The message. */
    public EnqueueMessage build() {
      return new EnqueueMessage(request.build());
    }
  }
}

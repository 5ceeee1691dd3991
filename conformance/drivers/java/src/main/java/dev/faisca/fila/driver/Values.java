// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.driver;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import dev.faisca.fila.AclEntry;
import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.EnqueueMessage;
import dev.faisca.fila.Failure;
import dev.faisca.fila.FilaClient;
import dev.faisca.fila.FilaException;
import dev.faisca.fila.Permission;
import dev.faisca.fila.QueueSettings;
import dev.faisca.fila.ThrottleKeyStats;
import java.time.Instant;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import java.util.function.Function;
import java.util.stream.StreamSupport;

/** The SDK's values as the protocol writes them, and the protocol's as the SDK takes them. */
final class Values {
  private static final List<String> FEATURES =
      List.of(
          "tracing",
          "mtls",
          "admin",
          "nack_many",
          "around",
          "error_fields",
          "shared_consumer",
          "ill_formed_text",
          "sub_millisecond");

  private Values() {}

  static JsonObject error(FilaException error) {
    JsonObject shown = new JsonObject();
    shown.addProperty("kind", kind(error.getClass()));
    shown.addProperty("message", error.getMessage());
    shown.addProperty("retryable", error.isRetryable());
    shown.addProperty("code", error.code());
    shown.addProperty("reason", error.reason());
    shown.addProperty("queue", error.queue());
    shown.addProperty("message_id", error.messageId());
    return shown;
  }

  /** What the SDK takes for a mistake of the program. */
  static JsonObject refused(IllegalArgumentException error) {
    JsonObject shown = new JsonObject();
    shown.addProperty("kind", "invalid_argument");
    shown.addProperty("message", error.getMessage());
    shown.addProperty("retryable", false);
    return shown;
  }

  static JsonObject cancelled() {
    JsonObject shown = new JsonObject();
    shown.addProperty("kind", "cancelled");
    shown.addProperty("message", "the thread was interrupted");
    shown.addProperty("retryable", false);
    return shown;
  }

  /** QueueNotFoundException is queue_not_found. */
  private static String kind(Class<? extends FilaException> type) {
    String name = type.getSimpleName().replaceFirst("Exception$", "");
    return name.replaceAll("(?<!^)(?=[A-Z])", "_").toLowerCase(Locale.ROOT);
  }

  static <T> JsonArray array(List<T> values, Function<T, JsonElement> show) {
    JsonArray array = new JsonArray();
    values.forEach(value -> array.add(show.apply(value)));
    return array;
  }

  static JsonObject message(ConsumeMessage message) {
    JsonObject shown = new JsonObject();
    shown.addProperty("id", message.id());
    shown.addProperty("queue", message.queue());
    JsonObject headers = new JsonObject();
    message.headers().forEach(headers::addProperty);
    shown.add("headers", headers);
    shown.addProperty("payload", Base64.getEncoder().encodeToString(message.payload()));
    shown.addProperty("fairness_key", message.fairnessKey());
    shown.addProperty("weight", message.weight());
    JsonArray throttleKeys = new JsonArray();
    message.throttleKeys().forEach(throttleKeys::add);
    shown.add("throttle_keys", throttleKeys);
    shown.addProperty("attempt_count", message.attemptCount());
    shown.addProperty("lease_token", message.leaseToken());
    shown.addProperty("last_error", message.lastError());
    shown.add("failures", array(message.failures(), Values::failure));
    shown.addProperty("enqueued_at_ms", millis(message.enqueuedAt()));
    shown.addProperty("lease_expires_at_ms", millis(message.leaseExpiresAt()));
    return shown;
  }

  private static JsonElement failure(Failure failure) {
    JsonObject shown = new JsonObject();
    shown.addProperty("failed_at_ms", millis(failure.failedAt()));
    shown.addProperty("cause", lower(failure.cause()));
    shown.addProperty("error", failure.error());
    return shown;
  }

  static JsonElement throttle(ThrottleKeyStats row) {
    JsonObject shown = new JsonObject();
    shown.addProperty("key", row.key());
    shown.addProperty("rate_per_second", row.ratePerSecond());
    shown.addProperty("burst", row.burst());
    shown.addProperty("concurrency_limit", row.concurrencyLimit());
    shown.addProperty("in_flight", row.inFlight());
    shown.addProperty("waiting", row.waiting());
    shown.addProperty("pattern", row.pattern());
    shown.addProperty("unset", row.isUnset());
    shown.addProperty("paused", row.isPaused());
    return shown;
  }

  static AclEntry aclEntry(Request request) {
    String permission = request.text("permission").toUpperCase(Locale.ROOT);
    return new AclEntry(Permission.valueOf(permission), request.text("pattern"));
  }

  static JsonElement aclEntry(AclEntry entry) {
    JsonObject shown = new JsonObject();
    shown.addProperty("permission", lower(entry.permission()));
    shown.addProperty("pattern", entry.pattern());
    return shown;
  }

  /** A member of an enumeration as the contract's text; null for none. */
  static String lower(Enum<?> member) {
    return member == null ? null : member.name().toLowerCase(Locale.ROOT);
  }

  static Long millis(Instant instant) {
    return instant == null ? null : instant.toEpochMilli();
  }

  static EnqueueMessage enqueueMessage(Request request) {
    EnqueueMessage.Builder message = EnqueueMessage.to(request.text("queue"));
    request.ifPresent(
        "headers",
        headers ->
            headers
                .getAsJsonObject()
                .asMap()
                .forEach((key, value) -> message.header(key, value.getAsString())));
    request.ifPresent("payload", field -> message.payload(Request.bytes(field)));
    request.ifPresent("fairness_key", field -> message.fairnessKey(field.getAsString()));
    request.ifPresent("weight", field -> message.weight(field.getAsInt()));
    request.ifPresent("throttle_keys", field -> message.throttleKeys(texts(field)));
    request.ifPresent("throttle_cost", field -> message.throttleCost(field.getAsInt()));
    request.ifPresent("delay_ms", field -> message.delay(Request.duration(field)));
    request.ifPresent(
        "deliver_at_ms", field -> message.deliverAt(Instant.ofEpochMilli(field.getAsLong())));
    request.ifPresent("ttl_ms", field -> message.ttl(Request.duration(field)));
    request.ifPresent("idempotency_key", field -> message.idempotencyKey(field.getAsString()));
    return message.build();
  }

  static QueueSettings settings(Request request) {
    QueueSettings.Builder settings = QueueSettings.builder();
    request.ifPresent(
        "visibility_timeout_ms", field -> settings.visibilityTimeout(Request.duration(field)));
    request.ifPresent("max_attempts", field -> settings.maxAttempts(field.getAsInt()));
    request.ifPresent("retry_delay_ms", field -> settings.retryDelay(Request.duration(field)));
    request.ifPresent("max_messages", field -> settings.maxMessages(field.getAsLong()));
    request.ifPresent("on_enqueue_script", field -> settings.onEnqueueScript(field.getAsString()));
    request.ifPresent("on_failure_script", field -> settings.onFailureScript(field.getAsString()));
    request.ifPresent("default_ttl_ms", field -> settings.defaultTtl(Request.duration(field)));
    request.ifPresent(
        "idempotency_window_ms", field -> settings.idempotencyWindow(Request.duration(field)));
    return settings.build();
  }

  private static List<String> texts(JsonElement field) {
    return StreamSupport.stream(field.getAsJsonArray().spliterator(), false)
        .map(JsonElement::getAsString)
        .toList();
  }

  /** What the driver is. */
  static JsonObject hello() {
    JsonObject ok = new JsonObject();
    ok.addProperty("sdk", "fila-java");
    ok.addProperty("sdk_version", FilaClient.version());
    ok.addProperty("language", "java " + Runtime.version().feature());
    JsonArray features = new JsonArray();
    FEATURES.forEach(features::add);
    ok.add("features", features);
    return ok;
  }
}

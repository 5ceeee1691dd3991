// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.driver;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import dev.faisca.fila.Acl;
import dev.faisca.fila.AclEntry;
import dev.faisca.fila.ApiKeyInfo;
import dev.faisca.fila.DeletedQueue;
import dev.faisca.fila.Explanation;
import dev.faisca.fila.FilaClient;
import dev.faisca.fila.FilaException;
import dev.faisca.fila.MessageState;
import dev.faisca.fila.NewApiKey;
import dev.faisca.fila.PeekOptions;
import dev.faisca.fila.PeekPage;
import dev.faisca.fila.PeekedMessage;
import dev.faisca.fila.QueueConfig;
import dev.faisca.fila.QueueInfo;
import dev.faisca.fila.QueueSettings;
import dev.faisca.fila.QueueStats;
import dev.faisca.fila.RedriveOptions;
import dev.faisca.fila.ThrottleFilter;
import dev.faisca.fila.ThrottlePage;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** The operations of the protocol that operate a broker: one method for each, or a line. */
final class Administration {
  private Administration() {}

  static JsonObject run(FilaClient client, Request request) throws FilaException {
    JsonObject ok = new JsonObject();
    String queue = request.text("queue");
    String key = request.text("key");
    switch (request.op()) {
      case "create_queue" ->
          ok.addProperty("dead_letter_queue", client.createQueue(queue, settings(request)));
      case "ensure_queue" ->
          ok.addProperty("dead_letter_queue", client.ensureQueue(queue, settings(request)));
      case "update_queue" ->
          ok.add("settings", show(client.updateQueue(queue, settings(request))));
      case "delete_queue" -> deleteQueue(client, request, ok);
      case "list_queues" ->
          ok.add("queues", Values.array(client.listQueues(), Administration::show));
      case "stats" -> stats(client.stats(queue), ok);
      case "peek" -> peek(client, request, ok);
      case "purge" -> ok.addProperty("purged", client.purge(queue, request.text("fairness_key")));
      case "pause" -> client.pause(queue, request.text("fairness_key"));
      case "resume" -> client.resume(queue, request.text("fairness_key"));
      case "cancel_message" -> client.cancel(queue, request.text("message_id"));
      case "explain" -> explain(client, request, ok);
      case "redrive" -> redrive(client, request, ok);
      case "set_config" -> client.setConfig(key, request.text("value"));
      case "get_config" -> ok.addProperty("value", client.getConfig(key));
      case "delete_config" -> client.deleteConfig(key);
      case "list_config" -> listConfig(client, request, ok);
      case "set_config_all" -> setConfigAll(client, request);
      case "list_throttles" -> listThrottles(client, request, ok);
      case "pause_throttle" -> client.pauseThrottle(key, request.millis("duration_ms"));
      case "resume_throttle" -> client.resumeThrottle(key);
      case "create_api_key" -> createApiKey(client, request, ok);
      case "revoke_api_key" -> client.revokeApiKey(request.text("key_id"));
      case "list_api_keys" ->
          ok.add("keys", Values.array(client.listApiKeys(), Administration::show));
      case "set_acl" -> client.setAcl(request.text("key_id"), acl(request));
      case "get_acl" -> getAcl(client.getAcl(request.text("key_id")), ok);
      default -> throw new UnsupportedOperationException("there is no op " + request.op());
    }
    return ok;
  }

  // --- Queues -----------------------------------------------------------------------------------

  private static QueueSettings settings(Request request) {
    Request settings = request.nested("settings");
    return settings == null ? QueueSettings.NONE : Values.settings(settings);
  }

  private static JsonObject show(QueueConfig config) {
    JsonObject shown = new JsonObject();
    shown.addProperty("visibility_timeout_ms", config.visibilityTimeout().toMillis());
    shown.addProperty("max_attempts", config.maxAttempts());
    shown.addProperty("retry_delay_ms", config.retryDelay().toMillis());
    shown.addProperty("max_messages", config.maxMessages());
    shown.addProperty("default_ttl_ms", config.defaultTtl().toMillis());
    shown.addProperty("idempotency_window_ms", config.idempotencyWindow().toMillis());
    return shown;
  }

  private static void deleteQueue(FilaClient client, Request request, JsonObject ok)
      throws FilaException {
    String queue = request.text("queue");
    DeletedQueue deleted =
        request.isTrue("keep_dead_letters")
            ? client.deleteQueueKeepingDeadLetters(queue)
            : client.deleteQueue(queue);
    ok.addProperty("messages", deleted.messages());
    ok.addProperty("dead_letters", deleted.deadLetters());
  }

  private static JsonElement show(QueueInfo info) {
    JsonObject shown = new JsonObject();
    shown.addProperty("name", info.name());
    shown.addProperty("depth", info.depth());
    shown.addProperty("in_flight", info.inFlight());
    shown.addProperty("active_consumers", info.activeConsumers());
    return shown;
  }

  private static void stats(QueueStats stats, JsonObject ok) {
    ok.addProperty("depth", stats.depth());
    ok.addProperty("in_flight", stats.inFlight());
    ok.addProperty("delayed", stats.delayed());
    ok.addProperty("active_consumers", stats.activeConsumers());
  }

  private static void peek(FilaClient client, Request request, JsonObject ok)
      throws FilaException {
    String state = request.text("state");
    PeekOptions options =
        new PeekOptions(
            (int) request.position("limit"),
            request.position("from_position"),
            request.position("until_position"),
            request.text("fairness_key"),
            state == null ? null : MessageState.valueOf(state.toUpperCase(Locale.ROOT)),
            request.isTrue("exclude_payload"));
    PeekPage page = client.peek(request.text("queue"), options);
    ok.add("messages", Values.array(page.messages(), Administration::show));
    ok.addProperty("next_position", page.nextPosition());
    ok.addProperty("end_position", page.endPosition());
  }

  private static JsonElement show(PeekedMessage row) {
    JsonObject shown = new JsonObject();
    shown.addProperty("id", row.message().id());
    shown.addProperty(
        "payload", Base64.getEncoder().encodeToString(row.message().payload()));
    shown.addProperty("fairness_key", row.message().fairnessKey());
    shown.addProperty("state", Values.lower(row.state()));
    shown.addProperty("position", row.position());
    return shown;
  }

  private static void explain(FilaClient client, Request request, JsonObject ok)
      throws FilaException {
    String queue = request.text("queue");
    String messageId = request.text("message_id");
    Explanation found =
        messageId == null
            ? client.explainKey(queue, request.text("fairness_key"))
            : client.explainMessage(queue, messageId);
    ok.addProperty("summary", found.summary());
    ok.add(
        "reasons",
        Values.array(
            found.reasons().stream().map(reason -> Values.lower(reason.kind())).toList(),
            JsonPrimitive::new));
    ok.addProperty("fairness_key", found.fairnessKey());
    ok.addProperty("pending_count", found.pendingCount());
    ok.addProperty("ahead", found.ahead());
    ok.addProperty("state", Values.lower(found.state()));
  }

  private static void redrive(FilaClient client, Request request, JsonObject ok)
      throws FilaException {
    RedriveOptions options = RedriveOptions.ALL;
    if (request.field("count") != null) {
      options = options.withCount(request.number("count"));
    }
    ok.addProperty("redriven", client.redrive(request.text("queue"), options));
  }

  // --- Configuration ----------------------------------------------------------------------------

  private static void listConfig(FilaClient client, Request request, JsonObject ok)
      throws FilaException {
    String prefix = request.text("prefix");
    JsonObject entries = new JsonObject();
    client.listConfig(prefix == null ? "" : prefix).forEach(entries::addProperty);
    ok.add("entries", entries);
  }

  private static void setConfigAll(FilaClient client, Request request) throws FilaException {
    Map<String, String> entries = new LinkedHashMap<>();
    Map<String, JsonElement> given = request.nested("entries").fields().asMap();
    given.forEach((key, value) -> entries.put(key, value.getAsString()));
    client.setConfigAll(entries);
  }

  private static void listThrottles(FilaClient client, Request request, JsonObject ok)
      throws FilaException {
    ThrottleFilter filter = ThrottleFilter.ALL;
    if (request.field("prefix") != null) {
      filter = filter.withPrefix(request.text("prefix"));
    }
    if (request.isTrue("unset")) {
      filter = filter.onlyUnset();
    }
    if (request.field("limit") != null) {
      filter = filter.withLimit(request.number("limit"));
    }
    ThrottlePage page = client.listThrottles(filter);
    ok.add("throttles", Values.array(page.throttles(), Values::throttle));
    ok.addProperty("total_count", page.totalCount());
  }

  // --- API keys ---------------------------------------------------------------------------------

  private static List<AclEntry> acl(Request request) {
    return request.field("acl") == null
        ? List.of()
        : request.list("acl").map(Values::aclEntry).toList();
  }

  private static void createApiKey(FilaClient client, Request request, JsonObject ok)
      throws FilaException {
    Duration expiry = request.millis("expires_at_ms");
    NewApiKey key =
        client.createApiKey(
            request.text("name"),
            acl(request),
            expiry == null ? null : Instant.EPOCH.plus(expiry),
            request.isTrue("superadmin"));
    ok.addProperty("key_id", key.keyId());
    ok.addProperty("secret", key.secret());
  }

  private static JsonElement show(ApiKeyInfo info) {
    JsonObject shown = new JsonObject();
    shown.addProperty("key_id", info.keyId());
    shown.addProperty("name", info.name());
    shown.addProperty("expires_at_ms", Values.millis(info.expiresAt()));
    shown.addProperty("superadmin", info.isSuperadmin());
    shown.add("acl", Values.array(info.acl(), Values::aclEntry));
    return shown;
  }

  private static void getAcl(Acl found, JsonObject ok) {
    ok.add("acl", Values.array(found.entries(), Values::aclEntry));
    ok.addProperty("superadmin", found.isSuperadmin());
  }
}

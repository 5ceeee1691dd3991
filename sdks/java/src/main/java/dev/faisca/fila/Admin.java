// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.CancelMessageRequest;
import dev.faisca.fila.internal.v1.CreateQueueRequest;
import dev.faisca.fila.internal.v1.CreateQueueResponse;
import dev.faisca.fila.internal.v1.DeleteConfigRequest;
import dev.faisca.fila.internal.v1.DeleteQueueRequest;
import dev.faisca.fila.internal.v1.ExplainRequest;
import dev.faisca.fila.internal.v1.FilaAdminGrpc;
import dev.faisca.fila.internal.v1.GetConfigRequest;
import dev.faisca.fila.internal.v1.GetConfigResponse;
import dev.faisca.fila.internal.v1.GetStatsRequest;
import dev.faisca.fila.internal.v1.GetStatsResponse;
import dev.faisca.fila.internal.v1.ListConfigRequest;
import dev.faisca.fila.internal.v1.ListConfigResponse;
import dev.faisca.fila.internal.v1.ListQueuesRequest;
import dev.faisca.fila.internal.v1.ListThrottlesRequest;
import dev.faisca.fila.internal.v1.PauseRequest;
import dev.faisca.fila.internal.v1.PeekRequest;
import dev.faisca.fila.internal.v1.PurgeRequest;
import dev.faisca.fila.internal.v1.PurgeResponse;
import dev.faisca.fila.internal.v1.RedriveRequest;
import dev.faisca.fila.internal.v1.RedriveResponse;
import dev.faisca.fila.internal.v1.ResumeRequest;
import dev.faisca.fila.internal.v1.SetConfigRequest;
import dev.faisca.fila.internal.v1.UpdateQueueRequest;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Operating a broker: the requests of FilaAdmin. Their answers are read by AdminAnswers. No I/O.
 */
final class Admin {
  private Admin() {}

  static Call<?, ?, String> createQueue(String name, QueueSettings settings) {
    CreateQueueRequest request =
        CreateQueueRequest.newBuilder()
            .setName(Wire.named("name", name))
            .setConfig(settings.config())
            .build();
    return Call.once(
        FilaAdminGrpc.getCreateQueueMethod(),
        request,
        CreateQueueResponse::getDeadLetterQueue,
        name);
  }

  static Call<?, ?, QueueConfig> updateQueue(String queue, QueueSettings settings) {
    UpdateQueueRequest request =
        UpdateQueueRequest.newBuilder()
            .setQueue(Wire.named("queue", queue))
            .setConfig(settings.config())
            .setUpdateMask(settings.mask())
            .build();
    return Call.once(
        FilaAdminGrpc.getUpdateQueueMethod(),
        request,
        answer -> AdminAnswers.config(answer.getConfig()),
        queue);
  }

  static Call<?, ?, DeletedQueue> deleteQueue(String queue, boolean keepDeadLetters) {
    DeleteQueueRequest request =
        DeleteQueueRequest.newBuilder()
            .setQueue(Wire.named("queue", queue))
            .setKeepDeadLetters(keepDeadLetters)
            .build();
    return Call.once(
        FilaAdminGrpc.getDeleteQueueMethod(),
        request,
        answer -> new DeletedQueue(answer.getMessages(), answer.getDeadLetters()),
        queue);
  }

  static Call<?, ?, List<QueueInfo>> listQueues() {
    return Call.repeatable(
        FilaAdminGrpc.getListQueuesMethod(),
        ListQueuesRequest.getDefaultInstance(),
        answer -> answer.getQueuesList().stream().map(AdminAnswers::info).toList(),
        null);
  }

  static Call<?, ?, QueueStats> stats(String queue, int maxKeys) {
    GetStatsRequest request =
        GetStatsRequest.newBuilder()
            .setQueue(Wire.named("queue", queue))
            .setMaxKeys(Wire.count("maxKeys", maxKeys))
            .build();
    return Call.repeatable(FilaAdminGrpc.getGetStatsMethod(), request, AdminAnswers::stats, queue);
  }

  /** A queue's settings as they travel. */
  static Call<?, ?, dev.faisca.fila.internal.v1.QueueConfig> config(String queue) {
    GetStatsRequest request =
        GetStatsRequest.newBuilder().setQueue(Wire.named("queue", queue)).setMaxKeys(1).build();
    return Call.repeatable(
        FilaAdminGrpc.getGetStatsMethod(), request, GetStatsResponse::getConfig, queue);
  }

  static Call<?, ?, PeekPage> peek(String queue, PeekOptions options) {
    PeekRequest.Builder request =
        PeekRequest.newBuilder()
            .setQueue(Wire.named("queue", queue))
            .setLimit(options.limit())
            .setFromPosition(options.fromPosition())
            .setUntilPosition(options.untilPosition())
            .setFairnessKey(Wire.optional("fairnessKey", options.fairnessKey()))
            .setExcludePayload(options.excludePayload());
    if (options.state() != null) {
      request.setState(
          dev.faisca.fila.internal.v1.MessageState.valueOf(
              "MESSAGE_STATE_" + options.state().name()));
    }
    return Call.repeatable(
        FilaAdminGrpc.getPeekMethod(), request.build(), AdminAnswers::page, queue);
  }

  static Call<?, ?, Long> purge(String queue, String fairnessKey) {
    PurgeRequest request =
        PurgeRequest.newBuilder()
            .setQueue(Wire.named("queue", queue))
            .setFairnessKey(Wire.optional("fairnessKey", fairnessKey))
            .build();
    return Call.once(FilaAdminGrpc.getPurgeMethod(), request, PurgeResponse::getPurged, queue);
  }

  static Call<?, ?, Void> pause(String queue, String fairnessKey) {
    PauseRequest request =
        PauseRequest.newBuilder()
            .setQueue(Wire.named("queue", queue))
            .setFairnessKey(Wire.optional("fairnessKey", fairnessKey))
            .build();
    return Call.once(FilaAdminGrpc.getPauseMethod(), request, answer -> null, queue);
  }

  static Call<?, ?, Void> resume(String queue, String fairnessKey) {
    ResumeRequest request =
        ResumeRequest.newBuilder()
            .setQueue(Wire.named("queue", queue))
            .setFairnessKey(Wire.optional("fairnessKey", fairnessKey))
            .build();
    return Call.once(FilaAdminGrpc.getResumeMethod(), request, answer -> null, queue);
  }

  static Call<?, ?, Long> redrive(String dlq, RedriveOptions options) {
    RedriveRequest request =
        RedriveRequest.newBuilder()
            .setDlqQueue(Wire.named("dlq", dlq))
            .setCount(options.count())
            .setFairnessKey(Wire.optional("fairnessKey", options.fairnessKey()))
            .setErrorContains(Wire.optional("errorContains", options.errorContains()))
            .addAllMessageIds(Wire.named("messageIds", options.messageIds()))
            .build();
    return Call.once(FilaAdminGrpc.getRedriveMethod(), request, RedriveResponse::getRedriven, dlq);
  }

  static Call<?, ?, Void> cancel(String queue, String messageId) {
    CancelMessageRequest request =
        CancelMessageRequest.newBuilder()
            .setQueue(Wire.named("queue", queue))
            .setMessageId(Wire.named("messageId", messageId))
            .build();
    return Call.once(FilaAdminGrpc.getCancelMessageMethod(), request, answer -> (Void) null, queue)
        .about(messageId);
  }

  static Call<?, ?, Explanation> explain(String queue, String fairnessKey, String messageId) {
    ExplainRequest request =
        ExplainRequest.newBuilder()
            .setQueue(Wire.named("queue", queue))
            .setFairnessKey(Wire.optional("fairnessKey", fairnessKey))
            .setMessageId(Wire.optional("messageId", messageId))
            .build();
    return Call.repeatable(
            FilaAdminGrpc.getExplainMethod(), request, AdminAnswers::explanation, queue)
        .about(messageId);
  }

  static Call<?, ?, ThrottlePage> listThrottles(ThrottleFilter filter) {
    ListThrottlesRequest request =
        ListThrottlesRequest.newBuilder()
            .setPrefix(filter.prefix())
            .setUnset(filter.isUnset())
            .setLimit(filter.limit())
            .build();
    return Call.repeatable(
        FilaAdminGrpc.getListThrottlesMethod(), request, AdminAnswers::throttles, null);
  }

  static Call<?, ?, Void> pauseThrottle(String key, Duration duration) {
    PauseRequest request =
        PauseRequest.newBuilder()
            .setThrottleKey(Wire.named("key", key))
            .setDurationMs(Wire.millis("duration", duration))
            .build();
    return Call.once(FilaAdminGrpc.getPauseMethod(), request, answer -> null, null);
  }

  static Call<?, ?, Void> resumeThrottle(String key) {
    ResumeRequest request =
        ResumeRequest.newBuilder().setThrottleKey(Wire.named("key", key)).build();
    return Call.once(FilaAdminGrpc.getResumeMethod(), request, answer -> null, null);
  }

  static Call<?, ?, Void> setConfig(String key, String value) {
    SetConfigRequest request =
        SetConfigRequest.newBuilder()
            .setKey(Wire.named("key", key))
            .setValue(Wire.named("value", value))
            .build();
    return Call.repeatable(FilaAdminGrpc.getSetConfigMethod(), request, answer -> null, null);
  }

  static Call<?, ?, Void> setConfigAll(Map<String, String> entries) {
    SetConfigRequest.Builder request = SetConfigRequest.newBuilder();
    entries.forEach(
        (key, value) ->
            request
                .addEntriesBuilder()
                .setKey(Wire.named("key", key))
                .setValue(Wire.named("value", value)));
    return Call.repeatable(
        FilaAdminGrpc.getSetConfigMethod(), request.build(), answer -> null, null);
  }

  static Call<?, ?, String> getConfig(String key) {
    GetConfigRequest request = GetConfigRequest.newBuilder().setKey(Wire.named("key", key)).build();
    return Call.repeatable(
        FilaAdminGrpc.getGetConfigMethod(), request, GetConfigResponse::getValue, null);
  }

  static Call<?, ?, Void> deleteConfig(String key) {
    DeleteConfigRequest request =
        DeleteConfigRequest.newBuilder().setKey(Wire.named("key", key)).build();
    // Not repeatable: a second one would not find what the first one removed.
    return Call.once(FilaAdminGrpc.getDeleteConfigMethod(), request, answer -> null, null);
  }

  static Call<?, ?, Map<String, String>> listConfig(String prefix) {
    ListConfigRequest request =
        ListConfigRequest.newBuilder().setPrefix(Wire.named("prefix", prefix)).build();
    return Call.repeatable(FilaAdminGrpc.getListConfigMethod(), request, Admin::entries, null);
  }

  private static Map<String, String> entries(ListConfigResponse answer) {
    Map<String, String> entries = new LinkedHashMap<>();
    answer.getEntriesList().forEach(entry -> entries.put(entry.getKey(), entry.getValue()));
    return entries;
  }

  static dev.faisca.fila.internal.v1.HookErrorPolicy number(HookErrorPolicy policy) {
    return dev.faisca.fila.internal.v1.HookErrorPolicy.valueOf(
        "HOOK_ERROR_POLICY_" + policy.name());
  }
}

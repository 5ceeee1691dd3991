// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import com.google.protobuf.FieldMask;
import java.time.Duration;

/**
 * The settings that {@link FilaClient#createQueue} and {@link FilaClient#updateQueue} take. What is
 * not set is left to the broker when a queue is created, and as it is when one is updated; zero and
 * empty mean the default.
 */
public final class QueueSettings {
  /** Sets nothing. */
  public static final QueueSettings NONE = builder().build();

  private final dev.faisca.fila.internal.v1.QueueConfig config;
  private final FieldMask mask;

  private QueueSettings(dev.faisca.fila.internal.v1.QueueConfig config, FieldMask mask) {
    this.config = config;
    this.mask = mask;
  }

  /** Begins settings. */
  public static Builder builder() {
    return new Builder();
  }

  dev.faisca.fila.internal.v1.QueueConfig config() {
    return config;
  }

  /** The names of what was set. */
  FieldMask mask() {
    return mask;
  }

  /** Collects settings. Negative numbers fail with IllegalArgumentException. */
  public static final class Builder {
    private final dev.faisca.fila.internal.v1.QueueConfig.Builder config =
        dev.faisca.fila.internal.v1.QueueConfig.newBuilder();
    private final FieldMask.Builder mask = FieldMask.newBuilder();

    private Builder() {}

    /** Lua source that defines on_enqueue(msg); empty means no hook. */
    public Builder onEnqueueScript(String source) {
      config.setOnEnqueueScript(Wire.named("onEnqueueScript", source));
      return set("on_enqueue_script");
    }

    /** Lua source that defines on_failure(msg, error, attempts); empty means no hook. */
    public Builder onFailureScript(String source) {
      config.setOnFailureScript(Wire.named("onFailureScript", source));
      return set("on_failure_script");
    }

    /** How long a lease lasts. */
    public Builder visibilityTimeout(Duration duration) {
      config.setVisibilityTimeoutMs(Wire.millis("visibilityTimeout", duration));
      return set("visibility_timeout_ms");
    }

    /** Failed or expired deliveries after which a message is dead-lettered; 0 means no limit. */
    public Builder maxAttempts(int count) {
      config.setMaxAttempts(Wire.count("maxAttempts", count));
      return set("max_attempts");
    }

    /** Wait before the first retry when no hook decides; doubles with each further attempt. */
    public Builder retryDelay(Duration duration) {
      config.setRetryDelayMs(Wire.millis("retryDelay", duration));
      return set("retry_delay_ms");
    }

    /** The longest wait that doubling reaches. */
    public Builder retryDelayMax(Duration duration) {
      config.setRetryDelayMaxMs(Wire.millis("retryDelayMax", duration));
      return set("retry_delay_max_ms");
    }

    /** The time to live of messages that have none of their own. */
    public Builder defaultTtl(Duration duration) {
      config.setDefaultTtlMs(Wire.millis("defaultTtl", duration));
      return set("default_ttl_ms");
    }

    /** How long idempotency keys are remembered. */
    public Builder idempotencyWindow(Duration duration) {
      config.setIdempotencyWindowMs(Wire.millis("idempotencyWindow", duration));
      return set("idempotency_window_ms");
    }

    /** Enqueues are refused while the queue holds this many messages; 0 means no limit. */
    public Builder maxMessages(long count) {
      config.setMaxMessages(Wire.count("maxMessages", count));
      return set("max_messages");
    }

    /** What happens when on_enqueue fails. */
    public Builder onHookError(HookErrorPolicy policy) {
      config.setOnHookError(Admin.number(policy));
      return set("on_hook_error");
    }

    /** The longest a hook call may run. */
    public Builder hookTimeout(Duration duration) {
      config.setHookTimeoutMs(Math.toIntExact(Wire.millis("hookTimeout", duration)));
      return set("hook_timeout_ms");
    }

    /** The most memory a hook may hold. */
    public Builder hookMemoryLimitBytes(long bytes) {
      config.setHookMemoryLimitBytes(Wire.count("hookMemoryLimitBytes", bytes));
      return set("hook_memory_limit_bytes");
    }

    /** Messages per unit of weight and turn. */
    public Builder quantum(int count) {
      config.setQuantum(Wire.count("quantum", count));
      return set("quantum");
    }

    /** The settings. */
    public QueueSettings build() {
      return new QueueSettings(config.build(), mask.build());
    }

    private Builder set(String field) {
      if (!mask.getPathsList().contains(field)) {
        mask.addPaths(field);
      }
      return this;
    }
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
// Operations about everything but messages: queues, throttle keys, configuration, API keys.

import { camel } from "./values.js";

function shownSettings(config) {
  return {
    visibility_timeout_ms: config.visibilityTimeoutMs,
    max_attempts: config.maxAttempts,
    retry_delay_ms: config.retryDelayMs,
    max_messages: config.maxMessages,
    default_ttl_ms: config.defaultTtlMs,
    idempotency_window_ms: config.idempotencyWindowMs,
  };
}

/** Each takes the request's fields, its client and its signal. */
export const operations = {
  async create_queue({ queue, settings }, client, signal) {
    return { dead_letter_queue: await client.createQueue(queue, camel(settings), { signal }) };
  },

  async ensure_queue({ queue, settings }, client, signal) {
    return { dead_letter_queue: await client.ensureQueue(queue, camel(settings), { signal }) };
  },

  async update_queue({ queue, settings }, client, signal) {
    const config = await client.updateQueue(queue, camel(settings), { signal });
    return { settings: shownSettings(config) };
  },

  async delete_queue({ queue, keepDeadLetters }, client, signal) {
    const { messages, deadLetters } = await client.deleteQueue(queue, { keepDeadLetters, signal });
    return { messages, dead_letters: deadLetters };
  },

  async list_queues(fields, client, signal) {
    const queues = await client.listQueues({ signal });
    return {
      queues: queues.map(({ name, depth, inFlight, activeConsumers }) => ({
        ...{ name, depth },
        in_flight: inFlight,
        active_consumers: activeConsumers,
      })),
    };
  },

  async stats({ queue }, client, signal) {
    const { depth, inFlight, delayed, activeConsumers } = await client.stats(queue, { signal });
    return { depth, in_flight: inFlight, delayed, active_consumers: activeConsumers };
  },

  async peek({ queue, ...options }, client, signal) {
    const page = await client.peek(queue, { ...options, signal });
    return {
      messages: page.messages.map(({ message, state, position }) => ({
        id: message.id,
        payload: message.payload.toString("base64"),
        fairness_key: message.fairnessKey,
        ...{ state, position },
      })),
      next_position: page.nextPosition,
      end_position: page.endPosition,
    };
  },

  async purge({ queue, fairnessKey }, client, signal) {
    return { purged: await client.purge(queue, { fairnessKey, signal }) };
  },

  pause: ({ queue, fairnessKey }, client, signal) => client.pause(queue, { fairnessKey, signal }),

  resume: ({ queue, fairnessKey }, client, signal) => client.resume(queue, { fairnessKey, signal }),

  cancel_message: ({ queue, messageId }, client, signal) =>
    client.cancel(queue, messageId, { signal }),

  async explain({ queue, fairnessKey, messageId }, client, signal) {
    const found = await client.explain(queue, { fairnessKey, messageId, signal });
    return {
      summary: found.summary,
      reasons: found.reasons.map(({ kind }) => kind),
      fairness_key: found.fairnessKey,
      pending_count: found.pendingCount,
      ahead: found.ahead,
      state: found.state,
    };
  },

  async redrive({ queue, count }, client, signal) {
    return { redriven: await client.redrive(queue, { count, signal }) };
  },

  set_config: ({ key, value }, client, signal) => client.setConfig(key, value, { signal }),

  async get_config({ key }, client, signal) {
    return { value: await client.getConfig(key, { signal }) };
  },

  delete_config: ({ key }, client, signal) => client.deleteConfig(key, { signal }),

  async list_config({ prefix }, client, signal) {
    return { entries: await client.listConfig(prefix, { signal }) };
  },

  set_config_all: ({ entries }, client, signal) => client.setConfigAll(entries, { signal }),

  async list_throttles({ prefix, unset, limit }, client, signal) {
    const page = await client.listThrottles(prefix, { unset, limit, signal });
    return {
      throttles: page.throttles.map(({ key, burst, waiting, pattern, ...row }) => ({
        ...{ key, burst, waiting, pattern, unset: row.unset, paused: row.paused },
        rate_per_second: row.ratePerSecond,
        concurrency_limit: row.concurrencyLimit,
        in_flight: row.inFlight,
      })),
      total_count: page.totalCount,
    };
  },

  pause_throttle: ({ key, durationMs }, client, signal) =>
    client.pauseThrottle(key, { durationMs, signal }),

  resume_throttle: ({ key }, client, signal) => client.resumeThrottle(key, { signal }),

  async create_api_key({ name, acl, expiresAtMs, superadmin }, client, signal) {
    const expiresAt = expiresAtMs === undefined ? undefined : new Date(expiresAtMs);
    const key = await client.createApiKey(name, { acl, expiresAt, superadmin, signal });
    return { key_id: key.keyId, secret: key.secret };
  },

  revoke_api_key: ({ keyId }, client, signal) => client.revokeApiKey(keyId, { signal }),

  async list_api_keys(fields, client, signal) {
    const keys = await client.listApiKeys({ signal });
    return {
      keys: keys.map(({ keyId, name, expiresAt, superadmin, acl }) => ({
        key_id: keyId,
        ...{ name, superadmin, acl },
        expires_at_ms: expiresAt?.getTime() ?? null,
      })),
    };
  },

  set_acl: ({ keyId, acl }, client, signal) => client.setAcl(keyId, acl, { signal }),

  async get_acl({ keyId }, client, signal) {
    const { entries, superadmin } = await client.getAcl(keyId, { signal });
    return { acl: entries, superadmin };
  },

  async ping({ timeoutMs }, client, signal) {
    return { ms: await client.ping({ timeoutMs, signal }) };
  },
};

// SPDX-License-Identifier: AGPL-3.0-only
// Operators' calls: queues, throttle keys, configuration, API keys. Every method names one call;
// what they send and read is the business of `admin.ts` and `access.ts`.

import * as access from "./access.js";
import type { Acl, AclEntry, ApiKeyInfo, ApiKeyOptions, NewApiKey } from "./access.js";
import * as admin from "./admin.js";
import type {
  DeletedQueue,
  DeleteOptions,
  ExplainOptions,
  Explanation,
  FairnessKeyOptions,
  PauseThrottleOptions,
  PeekOptions,
  PeekPage,
  QueueInfo,
  QueueStats,
  RedriveOptions,
  StatsOptions,
  ThrottleOptions,
  ThrottlePage,
} from "./admin.js";
import type { Connection } from "./connection.js";
import { QueueAlreadyExistsError, QueueNotFoundError } from "./errors.js";
import type { CallOptions } from "./options.js";
import { differences } from "./settings.js";
import type { QueueConfig, QueueSettings } from "./settings.js";

// What the broker calls a queue's dead-letter queue.
const DEAD_LETTER_SUFFIX = ".dlq";

/** The calls about everything but messages. A `Client` has them. */
export abstract class Operations {
  readonly #connection: Connection;

  /** @internal */
  constructor(connection: Connection) {
    this.#connection = connection;
  }

  // --- Queues ------------------------------------------------------------------------------------

  /** Creates a queue and its dead-letter queue, and returns the latter's name. */
  async createQueue(
    name: string,
    settings: QueueSettings = {},
    options: CallOptions = {},
  ): Promise<string> {
    return this.#connection.call(admin.createQueue(name, settings), options);
  }

  /**
   * Creates a queue if it is missing, and is content with one that has these settings; returns the
   * name of its dead-letter queue. It never changes a queue: one whose settings differ rejects with
   * a QueueAlreadyExistsError that names them, and `updateQueue` changes them. Settings that are
   * not given are not compared.
   */
  async ensureQueue(
    name: string,
    settings: QueueSettings = {},
    { timeoutMs, signal }: CallOptions = {},
  ): Promise<string> {
    const deadline = performance.now() + this.#connection.milliseconds(timeoutMs);
    const options = () => ({ timeoutMs: deadline - performance.now(), signal });
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await this.createQueue(name, settings, options());
      } catch (error) {
        if (!(error instanceof QueueAlreadyExistsError)) throw error;
        try {
          const { config } = await this.stats(name, { maxKeys: 1, ...options() });
          checkSame(error, settings, config);
          return `${name}${DEAD_LETTER_SUFFIX}`;
        } catch (gone) {
          // Somebody deleted it between the two calls. Twice is no accident.
          if (!(gone instanceof QueueNotFoundError) || attempt > 0) throw gone;
        }
      }
    }
  }

  /** Changes the settings that are named, and returns all of them. */
  async updateQueue(
    queue: string,
    settings: QueueSettings,
    options: CallOptions = {},
  ): Promise<QueueConfig> {
    return this.#connection.call(admin.updateQueue(queue, settings), options);
  }

  /** Removes a queue with everything in it and its dead letters; returns how many went. */
  async deleteQueue(queue: string, options: DeleteOptions = {}): Promise<DeletedQueue> {
    return this.#connection.call(admin.deleteQueue(queue, options), options);
  }

  /** All queues by name. */
  async listQueues(options: CallOptions = {}): Promise<QueueInfo[]> {
    return this.#connection.call(admin.listQueues(), options);
  }

  /** Counts, scheduling state and settings of a queue, with its `maxKeys` busiest keys. */
  async stats(queue: string, options: StatsOptions = {}): Promise<QueueStats> {
    return this.#connection.call(admin.stats(queue, options), options);
  }

  /** Shows messages without leasing them, oldest first. */
  async peek(queue: string, options: PeekOptions = {}): Promise<PeekPage> {
    return this.#connection.call(admin.peek(queue, options), options);
  }

  /** Drops pending and delayed messages, and returns how many. */
  async purge(queue: string, options: FairnessKeyOptions = {}): Promise<number> {
    return this.#connection.call(admin.purge(queue, options), options);
  }

  /** Stops deliveries from a queue, or from one fairness key of it; enqueueing goes on. */
  async pause(queue: string, options: FairnessKeyOptions = {}): Promise<void> {
    return this.#connection.call(admin.pause(queue, options), options);
  }

  /** Starts deliveries again. */
  async resume(queue: string, options: FairnessKeyOptions = {}): Promise<void> {
    return this.#connection.call(admin.resume(queue, options), options);
  }

  /** Moves dead letters back to where they came from, oldest first, and returns how many. */
  async redrive(dlq: string, options: RedriveOptions = {}): Promise<number> {
    return this.#connection.call(admin.redrive(dlq, options), options);
  }

  /** Drops one message; a leased one rejects with MessageLeasedError. */
  async cancel(queue: string, messageId: string, options: CallOptions = {}): Promise<void> {
    return this.#connection.call(admin.cancel(queue, messageId), options);
  }

  /** Says why a message or a fairness key waits, and for how long. */
  async explain(queue: string, options: ExplainOptions = {}): Promise<Explanation> {
    return this.#connection.call(admin.explain(queue, options), options);
  }

  // --- Throttle keys -----------------------------------------------------------------------------

  /** Throttle keys that are configured or in use; `unset` shows those nobody configured. */
  async listThrottles(prefix = "", options: ThrottleOptions = {}): Promise<ThrottlePage> {
    return this.#connection.call(admin.listThrottles(prefix, options), options);
  }

  /** Stops deliveries with a throttle key in all queues, for a time or until it is resumed. */
  async pauseThrottle(key: string, options: PauseThrottleOptions = {}): Promise<void> {
    return this.#connection.call(admin.pauseThrottle(key, options), options);
  }

  /** Starts deliveries with a throttle key again, whoever stopped them. */
  async resumeThrottle(key: string, options: CallOptions = {}): Promise<void> {
    return this.#connection.call(admin.resumeThrottle(key), options);
  }

  // --- Runtime configuration ---------------------------------------------------------------------

  /**
   * Sets one entry, in force at once; limits such as `throttle:<key>:rate` are entries. An empty
   * value removes the entry.
   */
  async setConfig(key: string, value: string, options: CallOptions = {}): Promise<void> {
    return this.#connection.call(admin.setConfig(key, value), options);
  }

  /** Sets several entries together, all or none; an empty value removes its entry. */
  async setConfigAll(
    entries: Readonly<Record<string, string>>,
    options: CallOptions = {},
  ): Promise<void> {
    return this.#connection.call(admin.setConfigAll(entries), options);
  }

  /** Reads one entry, or rejects with ConfigNotFoundError. */
  async getConfig(key: string, options: CallOptions = {}): Promise<string> {
    return this.#connection.call(admin.getConfig(key), options);
  }

  /** Removes one entry, and the limit that it set. */
  async deleteConfig(key: string, options: CallOptions = {}): Promise<void> {
    return this.#connection.call(admin.deleteConfig(key), options);
  }

  /** The entries whose keys start with `prefix`. */
  async listConfig(prefix = "", options: CallOptions = {}): Promise<Record<string, string>> {
    return this.#connection.call(admin.listConfig(prefix), options);
  }

  // --- API keys ----------------------------------------------------------------------------------

  /** Creates an API key and returns its secret, this once. */
  async createApiKey(name: string, options: ApiKeyOptions = {}): Promise<NewApiKey> {
    return this.#connection.call(access.createApiKey(name, options), options);
  }

  /** Makes an API key useless at once. */
  async revokeApiKey(keyId: string, options: CallOptions = {}): Promise<void> {
    return this.#connection.call(access.revokeApiKey(keyId), options);
  }

  /** All API keys, without secrets. */
  async listApiKeys(options: CallOptions = {}): Promise<ApiKeyInfo[]> {
    return this.#connection.call(access.listApiKeys(), options);
  }

  /** Replaces what an API key may do. */
  async setAcl(keyId: string, acl: Iterable<AclEntry>, options: CallOptions = {}): Promise<void> {
    return this.#connection.call(access.setAcl(keyId, acl), options);
  }

  /** Reads what an API key may do. */
  async getAcl(keyId: string, options: CallOptions = {}): Promise<Acl> {
    return this.#connection.call(access.getAcl(keyId), options);
  }
}

/** Throws if the queue is not what was asked for. */
function checkSame(
  exists: QueueAlreadyExistsError,
  settings: QueueSettings,
  config: QueueConfig,
): void {
  const found = differences(settings, config);
  if (found.length === 0) return;
  const { code, reason, queue } = exists;
  const text = `queue "${queue}" exists with other settings: ${found.join(", ")}`;
  throw new QueueAlreadyExistsError(`${text}; updateQueue changes them`, { code, reason, queue });
}

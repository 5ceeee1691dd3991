// SPDX-License-Identifier: AGPL-3.0-only
// The client. Every method names one call; building, sending, batching and reading are the business
// of the modules below.

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
import { required } from "./arguments.js";
import { Backlog } from "./backlog.js";
import { sendMany } from "./bulk.js";
import { Connection, tooLate } from "./connection.js";
import { Consumer } from "./consumer.js";
import type { Base, Opening } from "./consumer.js";
import { FilaError } from "./errors.js";
import { ReceiveResponse } from "./gen/fila/v1/service.js";
import * as grants from "./grants.js";
import type { ExtendGrantOptions, GrantOptions, NackGrantOptions, Settled } from "./grants.js";
import type { BatchHandler, BatchWorkerOptions, Handler, WorkerOptions } from "./handler.js";
import { Frame, Leases } from "./leases.js";
import { EnqueueResult, settled } from "./message.js";
import type {
  ConsumeMessage,
  Delivery,
  EnqueueMessage,
  Headers,
  MessageOptions,
  NackOptions,
} from "./message.js";
import {
  DEFAULT_BUFFERED_BYTES_MAX,
  DEFAULT_CLOSE_TIMEOUT_MS,
  DEFAULT_TARGET,
  checkedBytes,
  checkedMs,
} from "./options.js";
import type { CallOptions, ClientOptions, ConsumeOptions } from "./options.js";
import { Pipelines } from "./pipeline.js";
import type { QueueConfig, QueueSettings } from "./settings.js";
import { Singles } from "./singles.js";
import { currentTrace } from "./tracing.js";
import * as wire from "./wire.js";
import { Worker } from "./worker.js";

/** Options of `enqueue`. */
export interface EnqueueOptions extends MessageOptions, CallOptions {}

/** Options of `receive`. */
export interface ReceiveOptions extends CallOptions {
  /** The most messages to return, 1 unless told otherwise. */
  readonly maxMessages?: number | undefined;
  /** How long to wait for the first message; it comes on top of the call's deadline. */
  readonly waitMs?: number | undefined;
  /** How long each lease lasts, instead of the queue's visibility timeout. */
  readonly visibilityTimeoutMs?: number | undefined;
}

/** Options of calls about one delivery. */
export interface LeaseOptions extends CallOptions {
  /** The token of the delivery; without it the message id alone decides. */
  readonly leaseToken?: string | undefined;
}

/** Options of `extend`. */
export interface ExtendOptions extends LeaseOptions {
  /** The lease ends this long from now, by default after the queue's visibility timeout. */
  readonly ms?: number | undefined;
}

/**
 * A connection to a broker, made with the first call. Concurrent calls travel in shared batches.
 *
 * Every method takes `timeoutMs`, its deadline instead of the client's, and `signal`, which gives
 * the call up. After `close()` every method rejects with a ClientClosedError.
 */
export class Client {
  readonly #connection: Connection;
  readonly #pipelines: Pipelines;
  readonly #backlog: Backlog;
  readonly #singles: Singles;
  readonly #base: Base;
  readonly #consumers = new Set<Consumer>();
  readonly #closeTimeoutMs: number;
  #closing: Promise<void> | null = null;

  constructor(target: string = DEFAULT_TARGET, options: ClientOptions = {}) {
    const {
      maxBufferedBytes = DEFAULT_BUFFERED_BYTES_MAX,
      closeTimeoutMs = DEFAULT_CLOSE_TIMEOUT_MS,
    } = options;
    this.#backlog = new Backlog(checkedBytes("maxBufferedBytes", maxBufferedBytes));
    this.#closeTimeoutMs = checkedMs("closeTimeoutMs", closeTimeoutMs);
    this.#connection = new Connection(target, options);
    this.#pipelines = new Pipelines(this.#connection);
    this.#singles = new Singles(this.#pipelines, this.#backlog);
    this.#base = {
      connection: this.#connection,
      settler: this.#singles,
      leases: new Leases(this.#pipelines),
    };
  }

  /**
   * Refuses further calls, ends consumers, without an error, and waits until enqueues and
   * settlements that were begun are answered, up to `closeTimeoutMs`. What is left is cut off and
   * rejects with a ClientClosedError. Harmless twice.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    this.#connection.refuse();
    await Promise.all([
      ...Array.from(this.#consumers, (consumer) => consumer.close()),
      this.#closeTimeoutMs > 0 && this.#backlog.answered(this.#closeTimeoutMs),
    ]);
    this.#base.leases.close();
    this.#connection.close();
  }

  /**
   * Waits until every enqueue, ack, nack and extension that was begun before has been answered,
   * whatever the answer.
   */
  async flush({ timeoutMs, signal }: CallOptions = {}): Promise<void> {
    this.#connection.checkOpen();
    const limitMs = this.#connection.milliseconds(timeoutMs);
    if (await this.#backlog.answered(limitMs, signal)) return;
    throw tooLate("calls that were begun before are not answered yet");
  }

  // --- Produce -----------------------------------------------------------------------------------

  /**
   * Stores one message and returns its id.
   *
   * UnavailableError, DeadlineExceededError and StorageFailedError leave open whether it was
   * stored. With an idempotency key it is sent again while the broker is away, up to the deadline.
   */
  async enqueue(
    queue: string,
    headers?: Headers | null,
    payload?: Uint8Array | null,
    options: EnqueueOptions = {},
  ): Promise<string> {
    const message = { ...options, queue, headers, payload };
    return (await this.#singles.enqueue(message, options)).messageId;
  }

  /**
   * Stores many messages in order, possibly in several queues; one result per message.
   *
   * They travel in as few requests as fit, one after the other, each with its own deadline. A
   * request that fails as a whole fails its messages and all that follow; it is sent again while
   * the broker is away if all its messages have idempotency keys. A message that cannot be encoded
   * throws a TypeError or RangeError; requests before its own have been sent by then.
   */
  async enqueueMany(
    messages: Iterable<EnqueueMessage>,
    options: CallOptions = {},
  ): Promise<EnqueueResult[]> {
    const trace = currentTrace();
    const items = map(messages, (message) => wire.enqueueItem(message, trace));
    const found = await this.#sendMany(wire.ENQUEUE, items, options);
    return found.map((outcome) =>
      outcome instanceof EnqueueResult ? outcome : new EnqueueResult("", false, outcome),
    );
  }

  // --- Consume -----------------------------------------------------------------------------------

  /**
   * Messages of a queue as they become ready, for as long as the consumer is open: `for await
   * (const message of client.consume(queue))`. An unknown queue is reported by the first iteration.
   */
  consume(queue: string, options: ConsumeOptions = {}): Consumer {
    return this.#open(queue, options);
  }

  #open(queue: string, options: Opening): Consumer {
    this.#connection.checkOpen();
    const forget = (closed: Consumer) => this.#consumers.delete(closed);
    const consumer = new Consumer(this.#base, queue, options, forget);
    this.#consumers.add(consumer);
    return consumer;
  }

  /**
   * A worker, which handles messages until it is stopped: `await client.worker(queue, handler)
   * .run()`. What the handler does decides what becomes of a message: returning acks it, throwing
   * nacks it, `Backpressure` puts it off and `DeadLetter` gives it up. With `batchSize` the handler
   * gets a list.
   */
  worker(queue: string, handler: Handler, options?: WorkerOptions): Worker;
  worker(queue: string, handler: BatchHandler, options: BatchWorkerOptions): Worker;
  worker(
    queue: string,
    handler: Handler | BatchHandler,
    options: WorkerOptions | BatchWorkerOptions = {},
  ): Worker {
    required("queue", queue);
    const open = (opening: Opening) => this.#open(queue, opening);
    return new Worker({ ...this.#base, open }, handler, options);
  }

  /** Leases up to `maxMessages`, waiting up to `waitMs` for the first; may return none. */
  async receive(queue: string, options: ReceiveOptions = {}): Promise<ConsumeMessage[]> {
    const { maxMessages, waitMs, visibilityTimeoutMs, timeoutMs, signal } = options;
    const call = {
      method: wire.RECEIVE,
      request: wire.receiveRequest(queue, maxMessages, waitMs, visibilityTimeoutMs),
      decode: (bytes: Buffer) => [
        ...new Frame(ReceiveResponse.decode(bytes).messages, this.#singles).messages,
      ],
      queue,
    };
    // The broker may use all of the wait before it begins to answer.
    const wholeMs = (waitMs ?? 0) + this.#connection.milliseconds(timeoutMs);
    return this.#connection.call(call, { timeoutMs: wholeMs, signal });
  }

  /**
   * Reports that a leased message was processed; it is gone.
   *
   * Rejects with MessageNotFoundError when it is not leased, and with LeaseExpiredError when the
   * token is of an earlier delivery. With its token it is sent again while the broker is away, up
   * to the deadline; after UnavailableError the message is gone, or comes back when its lease ends.
   */
  async ack(queue: string, messageId: string, options: LeaseOptions = {}): Promise<void> {
    await this.#singles.ack(delivery(queue, messageId, options), options);
  }

  /**
   * Acks many messages; null or an error for each, in order. Those that came together, and are
   * acked together, travel as one.
   */
  async ackMany(
    messages: Iterable<Delivery>,
    options: CallOptions = {},
  ): Promise<(FilaError | null)[]> {
    return this.#singles.ackMany(settled(messages), options);
  }

  /**
   * Acks what is left of a grant: all messages that were delivered under one lease token. Returns
   * how many were acked. Rejects with LeaseExpiredError when none is left of it.
   */
  async ackGrant(queue: string, leaseToken: string, options: GrantOptions = {}): Promise<number> {
    const item = grants.ackGrantItem(queue, leaseToken, options);
    return (await this.#settleGrant(item, options)).messages;
  }

  /**
   * Nacks what is left of a grant, each message as `nack` would; returns how many. With
   * `retryAfterMs: 0` they are given back unseen. Fails as `ackGrant` does.
   */
  async nackGrant(
    queue: string,
    leaseToken: string,
    error = "",
    options: NackGrantOptions = {},
  ): Promise<number> {
    const item = grants.nackGrantItem(queue, leaseToken, error, options);
    return (await this.#settleGrant(item, options)).messages;
  }

  /** Prolongs what is left of a grant and returns its new end. Fails as `ackGrant` does. */
  async extendGrant(
    queue: string,
    leaseToken: string,
    options: ExtendGrantOptions = {},
  ): Promise<Date> {
    const item = grants.extendGrantItem(queue, leaseToken, options);
    return (await this.#settleGrant(item, options)).leaseExpiresAt;
  }

  async #settleGrant(item: wire.Item, options: CallOptions): Promise<Settled> {
    const [outcome] = await this.#sendMany(grants.SETTLE, [item], options);
    if (outcome instanceof FilaError) throw outcome;
    return outcome as Settled;
  }

  /**
   * Reports that processing failed: the message is retried or dead-lettered.
   *
   * With `retryAfterMs` it is backpressure, not failure: the message comes back after that time and
   * no attempt is counted; `throttleKey` then lets nothing through until then, for anybody. Fails
   * as `ack` does.
   */
  async nack(
    queue: string,
    messageId: string,
    error = "",
    options: NackOptions & LeaseOptions = {},
  ): Promise<void> {
    await this.#singles.nack(delivery(queue, messageId, options), error, options);
  }

  /** Nacks many messages; null or an error for each, in order. */
  async nackMany(
    messages: Iterable<Delivery>,
    error = "",
    options: CallOptions = {},
  ): Promise<(FilaError | null)[]> {
    const items = map(settled(messages), (message) => wire.nackItem(message, error, {}));
    return this.#sendMany(wire.NACK, items, options);
  }

  /** Prolongs a lease and returns its new end. Fails as `ack` does. */
  async extend(queue: string, messageId: string, options: ExtendOptions = {}): Promise<Date> {
    return this.#singles.extend(delivery(queue, messageId, options), options.ms, options);
  }

  #sendMany<T>(
    rpc: wire.Batch<T>,
    items: Iterable<wire.Item>,
    options: CallOptions,
  ): Promise<(T | FilaError)[]> {
    return this.#backlog.run(() => sendMany(this.#pipelines, rpc, items, options));
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

function delivery(queue: string, messageId: string, { leaseToken = "" }: LeaseOptions): Delivery {
  return { queue, id: messageId, leaseToken };
}

function* map<T, U>(values: Iterable<T>, change: (value: T) => U): Generator<U> {
  for (const value of values) yield change(value);
}

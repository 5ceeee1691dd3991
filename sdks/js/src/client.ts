// SPDX-License-Identifier: AGPL-3.0-only
// The client. Every method names one call about messages, or is one of `operations.ts`; building,
// sending, batching and reading are the business of the modules below.

import { required } from "./arguments.js";
import { Backlog } from "./backlog.js";
import { sendMany } from "./bulk.js";
import { Connection, tooLate } from "./connection.js";
import { Consumer } from "./consumer.js";
import type { Base, Opening } from "./consumer.js";
import { DeadlineExceededError, FilaError, UnavailableError } from "./errors.js";
import { ReceiveResponse } from "./gen/fila/v1/service.js";
import * as grants from "./grants.js";
import type { ExtendGrantOptions, GrantOptions, NackGrantOptions, Settled } from "./grants.js";
import type { BatchHandler, BatchWorkerOptions, Handler, WorkerOptions } from "./handler.js";
import { CHECK } from "./health.js";
import { Frame, Leases } from "./leases.js";
import { ConsumeMessage, EnqueueResult, settled } from "./message.js";
import type {
  Delivery,
  EnqueueMessage,
  Headers,
  MessageOptions,
  NackOptions,
  Payload,
} from "./message.js";
import { Operations } from "./operations.js";
import {
  DEFAULT_BUFFERED_BYTES_MAX,
  DEFAULT_CLOSE_TIMEOUT_MS,
  DEFAULT_TARGET,
  boundedMs,
  checkedBytes,
  checkedMs,
} from "./options.js";
import type { CallOptions, ClientOptions, ConsumeOptions } from "./options.js";
import { Pipelines } from "./pipeline.js";
import { Singles } from "./singles.js";
import { currentTrace } from "./tracing.js";
import * as wire from "./wire.js";
import { Worker } from "./worker.js";

const READY_TIMEOUT_MS = 30_000;

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

/** Options of `extendMany`. */
export interface ExtendManyOptions extends CallOptions {
  /** The lease ends this long from now, by default after the queue's visibility timeout. */
  readonly ms?: number | undefined;
}

/** Options of `extend`. */
export interface ExtendOptions extends LeaseOptions, ExtendManyOptions {}

/**
 * A connection to a broker, made with the first call. Concurrent calls travel in shared batches.
 *
 * Every method takes `timeoutMs`, its deadline instead of the client's, and `signal`, which gives
 * the call up. After `close()` every method rejects with a ClientClosedError.
 */
export class Client extends Operations {
  readonly #connection: Connection;
  readonly #pipelines: Pipelines;
  readonly #backlog: Backlog;
  readonly #singles: Singles;
  readonly #base: Base;
  readonly #consumers = new Set<Consumer>();
  readonly #closeTimeoutMs: number;
  #closing: Promise<void> | null = null;

  /** `target` may name several brokers of one cluster: the first that answers is used. */
  constructor(target: string | readonly string[] = DEFAULT_TARGET, options: ClientOptions = {}) {
    const {
      maxBufferedBytes = DEFAULT_BUFFERED_BYTES_MAX,
      closeTimeoutMs = DEFAULT_CLOSE_TIMEOUT_MS,
    } = options;
    const backlog = new Backlog(checkedBytes("maxBufferedBytes", maxBufferedBytes));
    const checkedCloseMs = checkedMs("closeTimeoutMs", closeTimeoutMs);
    const connection = new Connection(target, options);
    super(connection);
    this.#backlog = backlog;
    this.#closeTimeoutMs = checkedCloseMs;
    this.#connection = connection;
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

  /** Asks the broker whether it serves, and returns how many milliseconds the answer took. */
  async ping(options: CallOptions = {}): Promise<number> {
    const startedAt = performance.now();
    const isServing = await this.#connection.call(CHECK, options);
    if (isServing) return performance.now() - startedAt;
    throw new UnavailableError("the broker is not serving", { code: "UNAVAILABLE" });
  }

  /**
   * Waits until the broker serves, 30 s unless told otherwise; then it is a DeadlineExceededError
   * that says why. For tests, and for scripts that start beside their broker.
   */
  async waitReady({ timeoutMs = READY_TIMEOUT_MS, signal }: CallOptions = {}): Promise<void> {
    const deadline = performance.now() + boundedMs(timeoutMs);
    let why: FilaError | null = null;
    for (let attempt = 0; ; attempt += 1) {
      const remainingMs = deadline - performance.now();
      try {
        await this.ping({ timeoutMs: Math.min(remainingMs, this.#connection.timeoutMs), signal });
        return;
      } catch (error) {
        // That the time was over says less than what was wrong before.
        if (error instanceof DeadlineExceededError) why ??= error;
        else if (error instanceof UnavailableError) why = error;
        else throw error;
        const delayMs = this.#connection.backoff.delayMs(attempt, Math.random());
        if (performance.now() + delayMs >= deadline) {
          const text = `the broker is not ready: ${why.message}`;
          throw new DeadlineExceededError(text, { code: "DEADLINE_EXCEEDED", cause: why });
        }
        await this.#connection.pause(delayMs, signal);
      }
    }
  }

  // --- Produce -----------------------------------------------------------------------------------

  /**
   * Stores one message and returns its id. The payload is bytes, `{ text }` or `{ json }`.
   *
   * UnavailableError, DeadlineExceededError and StorageFailedError leave open whether it was
   * stored. With an idempotency key it is sent again while the broker is away, up to the deadline.
   */
  async enqueue(
    queue: string,
    headers?: Headers | null,
    payload?: Payload | null,
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

  /** Prolongs many leases; the new end or an error for each, in order. */
  async extendMany(
    messages: Iterable<Delivery>,
    options: ExtendManyOptions = {},
  ): Promise<(Date | FilaError)[]> {
    const deliveries = Array.from(messages);
    for (const delivery of deliveries) ConsumeMessage.extending(delivery);
    const items = map(deliveries, (delivery) => wire.extendItem(delivery, options.ms));
    const found = await this.#sendMany(wire.EXTEND, items, options);
    found.forEach((outcome, index) => {
      if (outcome instanceof Date) ConsumeMessage.extended(deliveries[index] as Delivery, outcome);
    });
    return found;
  }

  #sendMany<T>(
    rpc: wire.Batch<T>,
    items: Iterable<wire.Item>,
    options: CallOptions,
  ): Promise<(T | FilaError)[]> {
    return this.#backlog.run(() => sendMany(this.#pipelines, rpc, items, options));
  }
}

function delivery(queue: string, messageId: string, { leaseToken = "" }: LeaseOptions): Delivery {
  return { queue, id: messageId, leaseToken };
}

function* map<T, U>(values: Iterable<T>, change: (value: T) => U): Generator<U> {
  for (const value of values) yield change(value);
}

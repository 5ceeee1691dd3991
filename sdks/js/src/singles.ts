// SPDX-License-Identifier: AGPL-3.0-only
// Calls about one message: they share batches, and are sent again where that is harmless. Each
// attempt joins another batch, so one caller's patience is nobody else's.

import { ackMany } from "./bulk.js";
import type { Backlog } from "./backlog.js";
import { Coalescer } from "./coalesce.js";
import { tooLate } from "./connection.js";
import { FilaError } from "./errors.js";
import { ConsumeMessage } from "./message.js";
import type {
  Delivery,
  EnqueueMessage,
  EnqueueResult,
  NackOptions,
  Settler,
} from "./message.js";
import type { CallOptions } from "./options.js";
import type { Pipelines } from "./pipeline.js";
import { currentTrace } from "./tracing.js";
import * as wire from "./wire.js";

const NO_ROOM = "too much waits to be sent already; this message was not sent";

export class Singles implements Settler {
  readonly #pipelines: Pipelines;
  readonly #backlog: Backlog;
  readonly #enqueues: Coalescer<EnqueueResult>;
  readonly #acks: Coalescer<null>;
  readonly #nacks: Coalescer<null>;
  readonly #extensions: Coalescer<Date>;

  constructor(pipelines: Pipelines, backlog: Backlog) {
    this.#pipelines = pipelines;
    this.#backlog = backlog;
    this.#enqueues = new Coalescer(wire.ENQUEUE, pipelines);
    this.#acks = new Coalescer(wire.ACK, pipelines);
    this.#nacks = new Coalescer(wire.NACK, pipelines);
    this.#extensions = new Coalescer(wire.EXTEND, pipelines);
  }

  enqueue(message: EnqueueMessage, options: CallOptions): Promise<EnqueueResult> {
    return this.#run(options, async (timeoutMs) => {
      const deadline = performance.now() + timeoutMs;
      if (this.#backlog.isFull) {
        const isFree = await this.#backlog.room(timeoutMs, options.signal);
        if (!isFree) throw tooLate(NO_ROOM, { queue: message.queue });
      }
      let bytes = 0;
      try {
        const item = wire.enqueueItem(message, currentTrace());
        bytes = item.data.length;
        this.#backlog.take(bytes);
        return await this.#send(this.#enqueues, item, deadline - performance.now(), options);
      } finally {
        this.#backlog.give(bytes);
      }
    });
  }

  ack(delivery: Delivery, options: CallOptions): Promise<void> {
    return this.#run(options, async (timeoutMs) => {
      const item = wire.ackItem(delivery);
      ConsumeMessage.settle(delivery);
      await this.#send(this.#acks, item, timeoutMs, options);
    });
  }

  nack(delivery: Delivery, error: string, options: NackOptions): Promise<void> {
    return this.#run(options, async (timeoutMs) => {
      const item = wire.nackItem(delivery, error, options);
      ConsumeMessage.settle(delivery);
      await this.#send(this.#nacks, item, timeoutMs, options);
    });
  }

  extend(delivery: Delivery, ms: number | undefined, options: CallOptions): Promise<Date> {
    return this.#run(options, (timeoutMs) => {
      const item = wire.extendItem(delivery, ms);
      return this.#send(this.#extensions, item, timeoutMs, options);
    });
  }

  ackMany(
    deliveries: readonly Delivery[],
    options: CallOptions = {},
  ): Promise<(FilaError | null)[]> {
    return this.#run(options, () =>
      ackMany(this.#pipelines, deliveries.map(wire.ackItem), options),
    );
  }

  async #run<T>(options: CallOptions, call: (timeoutMs: number) => Promise<T>): Promise<T> {
    const { connection } = this.#pipelines;
    connection.checkOpen();
    return this.#backlog.run(() => call(connection.milliseconds(options.timeoutMs)));
  }

  async #send<T>(
    coalescer: Coalescer<T>,
    item: wire.Item,
    timeoutMs: number,
    { signal }: CallOptions,
  ): Promise<T> {
    let isRepeat = false;
    const attempt = async (remainingMs: number): Promise<T> => {
      try {
        return await coalescer.submit(item, remainingMs, signal);
      } catch (error) {
        if (isRepeat && error instanceof FilaError) {
          const outcome = wire.afterRepeat(coalescer.rpc, error);
          if (!(outcome instanceof FilaError)) return outcome;
        }
        isRepeat = true;
        throw error;
      }
    };
    return this.#pipelines.connection.retrying(attempt, item.isRepeatable, { timeoutMs, signal });
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
// Concurrent calls of one client share batch requests. Nothing lingers.
//
// A few requests may be under way at a time. A call that finds a free slot goes out in the same
// turn of the event loop, together with calls that were made in that turn too; calls that find none
// wait, and the next free slot takes all of them (within a batch's limits). So batches grow only
// because calls piled up while the broker was busy with earlier ones.
//
// Each caller has a deadline and a signal of its own. Who gives up leaves the others undisturbed; a
// request is cancelled only when nobody waits for it any more.

import { onAbort } from "./abort.js";
import { tooLate } from "./connection.js";
import { FilaError, about, wordsOf } from "./errors.js";
import { currentTrace } from "./tracing.js";
import type { TraceContext } from "./tracing.js";
import { ackFrames } from "./grants.js";
import type { Send } from "./grants.js";
import type { Pipelines } from "./pipeline.js";
import { ACK, BATCH_BYTES_MAX, BATCH_ITEMS_MAX, join, outcomes } from "./wire.js";
import type { Batch, Item } from "./wire.js";

// Two keep the broker busy while an answer is on its way; with more, batches get smaller.
const REQUESTS_UNDER_WAY_MAX = 2;

const NOT_SENT = "no answer to earlier requests came in time; this one was not sent";
const NOT_ANSWERED = "no answer came in time; the outcome is unknown";

/** One caller who waits. */
class Seat<T> {
  readonly deadline: number;
  readonly trace: TraceContext = currentTrace();
  readonly #timer: NodeJS.Timeout;
  readonly #forget: () => void;
  #request: Request | null = null;
  #isGone = false;

  constructor(
    readonly item: Item,
    timeoutMs: number,
    readonly signal: AbortSignal | undefined,
    readonly resolve: (value: T) => void,
    readonly reject: (error: unknown) => void,
  ) {
    this.deadline = performance.now() + timeoutMs;
    this.#timer = setTimeout(() => {
      this.#expire();
    }, timeoutMs);
    this.#forget = onAbort(signal, () => {
      this.#abort();
    });
  }

  get isGone(): boolean {
    return this.#isGone;
  }

  sendWith(request: Request): void {
    this.#request = request;
  }

  settle(outcome: unknown): void {
    if (this.#isGone) return;
    this.#leave();
    if (outcome instanceof Error) this.reject(outcome);
    else this.resolve(outcome as T);
  }

  #expire(): void {
    this.#leave();
    this.reject(tooLate(this.#request === null ? NOT_SENT : NOT_ANSWERED, subjectOf(this.item)));
  }

  #abort(): void {
    this.#leave();
    this.#request?.forget();
    this.reject(this.signal?.reason);
  }

  #leave(): void {
    this.#isGone = true;
    clearTimeout(this.#timer);
    this.#forget();
  }
}

/** A request under way, and how many of its callers have not given up. */
class Request {
  readonly #controller = new AbortController();
  #callers: number;

  constructor(callers: number) {
    this.#callers = callers;
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  forget(): void {
    this.#callers -= 1;
    if (this.#callers === 0) this.#controller.abort();
  }
}

/** Removes the next batch from the queue, and with it callers who no longer wait. */
export function take<S extends Pick<Seat<unknown>, "item" | "isGone">>(waiting: S[]): S[] {
  const batch: S[] = [];
  let size = 0;
  let position = 0;
  for (; position < waiting.length && batch.length < BATCH_ITEMS_MAX; position += 1) {
    const seat = waiting[position] as S;
    if (seat.isGone) continue;
    size += seat.item.data.length;
    if (batch.length > 0 && size > BATCH_BYTES_MAX) break;
    batch.push(seat);
  }
  waiting.splice(0, position);
  return batch;
}

/** Batches the items of one client for one RPC. */
export class Coalescer<T> {
  readonly rpc: Batch<T>;
  readonly #pipelines: Pipelines;
  readonly #waiting: Seat<T>[] = [];
  #freeSlots = REQUESTS_UNDER_WAY_MAX;

  constructor(rpc: Batch<T>, pipelines: Pipelines) {
    this.rpc = rpc;
    this.#pipelines = pipelines;
  }

  /** Sends one item, with others if there are any. Rejects with its error, or the batch's. */
  submit(item: Item, timeoutMs: number, signal?: AbortSignal): Promise<T> {
    return new Promise((resolve, reject) => {
      this.#pipelines.connection.checkUncut();
      signal?.throwIfAborted();
      if (timeoutMs <= 0) throw tooLate(NOT_SENT, subjectOf(item));
      this.#waiting.push(new Seat<T>(item, timeoutMs, signal, resolve, reject));
      if (this.#freeSlots > 0) {
        this.#freeSlots -= 1;
        queueMicrotask(() => void this.#serve());
      }
    });
  }

  async #serve(): Promise<void> {
    for (let batch = take(this.#waiting); batch.length > 0; batch = take(this.#waiting)) {
      const found = await this.#send(batch);
      batch.forEach((seat, index) => {
        seat.settle(found[index]);
      });
    }
    this.#freeSlots += 1;
  }

  async #send(batch: readonly Seat<T>[]): Promise<readonly unknown[]> {
    const items = batch.map((seat) => seat.item);
    const request = new Request(batch.length);
    let deadline = 0;
    for (const seat of batch) {
      seat.sendWith(request);
      deadline = Math.max(deadline, seat.deadline);
    }
    const send: Send = async (rpc, some) => {
      const results = await this.#pipelines.send(rpc, join(some), {
        timeoutMs: deadline - performance.now(),
        // The request can carry one trace; each message has its own in its headers.
        trace: batch[0]?.trace,
        signal: request.signal,
      });
      return outcomes(rpc, results, some);
    };
    try {
      const isAck = (this.rpc as Batch<unknown>) === ACK;
      if (!isAck) return await send(this.rpc, items);
      return await ackFrames(this.#pipelines.connection, items, ACK, send);
    } catch (error) {
      if (error instanceof FilaError) return items.map((item) => about(error, subjectOf(item)));
      // Who gives the API key may throw anything; an outcome that is no Error would be a success.
      const cause = error instanceof Error ? error : new Error(wordsOf(error), { cause: error });
      return items.map(() => cause);
    }
  }
}

function subjectOf({ queue, messageId }: Item): Pick<Item, "queue" | "messageId"> {
  return { queue, messageId };
}

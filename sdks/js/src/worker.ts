// SPDX-License-Identifier: AGPL-3.0-only
// Handles messages until it is stopped: a consumer, a number of handlers, and a rule for what each
// outcome means to the broker. It decides no retries, which the queue does, and keeps no state.
//
//     take --> handle --> settle, beside the handlers
//      |         |
//      |         '-- too slow: nacked at once; its place stays taken until it really ends
//      '-- stop: nothing is taken any more; what still runs after the grace is given back

import { onAbort } from "./abort.js";
import { positive } from "./arguments.js";
import type { Consumer, Opening } from "./consumer.js";
import { FilaError, wordsOf } from "./errors.js";
import { Backpressure, DeadLetter } from "./handler.js";
import type {
  BatchHandler,
  BatchWorkerOptions,
  CommonOptions,
  Handler,
  HandlerContext,
  Middleware,
  RunOptions,
  StopOptions,
  WorkerEventKind,
  WorkerOptions,
} from "./handler.js";
import type { Leases } from "./leases.js";
import { warn } from "./log.js";
import { ConsumeMessage } from "./message.js";
import type { NackOptions, Settler } from "./message.js";
import { checkedMs } from "./options.js";
import { processingAll } from "./tracing.js";
import { DEFAULT_BATCH_SIZE } from "./wire.js";

const DEFAULT_CONCURRENCY = 10;
const DEFAULT_GRACE_MS = 20_000;
const SIGNALS = ["SIGTERM", "SIGINT"] as const;
// What a nack says is for people; the rest of a long text is in the worker's own log.
const ERROR_BYTES_MAX = 4_096;

/** What workers of one client share. */
export interface WorkerBase {
  readonly settler: Settler;
  readonly leases: Leases;
  readonly open: (options: Opening) => Consumer;
}

type Handle = (messages: ConsumeMessage[], context: HandlerContext) => unknown;

/** One call of the handler. */
class Handling implements HandlerContext {
  readonly #startedAt = performance.now();
  // Most handlers never look at the signal.
  #controller: AbortController | undefined;
  #reason: Error | undefined;
  /** Once it is decided what becomes of the messages. */
  isDecided = false;

  constructor(readonly messages: ConsumeMessage[]) {}

  get signal(): AbortSignal {
    this.#controller ??= new AbortController();
    if (this.#reason !== undefined) this.#controller.abort(this.#reason);
    return this.#controller.signal;
  }

  get seconds(): number {
    return (performance.now() - this.#startedAt) / 1_000;
  }

  abort(reason: Error): void {
    this.#reason = reason;
    this.#controller?.abort(reason);
  }
}

/** Handles the messages of a queue. Made by `Client.worker`; runs once. */
export class Worker {
  readonly #base: WorkerBase;
  readonly #handle: Handle;
  readonly #onEvent: CommonOptions["onEvent"];
  readonly #concurrency: number;
  readonly #batchMax: number;
  readonly #settlingMax: number;
  readonly #handlerTimeoutMs: number;
  readonly #graceMs: number;
  readonly #opening: Opening;
  #consumer: Consumer | null = null;
  #ended: Promise<void> | null = null;
  readonly #running = new Set<Handling>();
  // How many are being settled.
  #settling = 0;
  // Loops that wait because so much is being settled, and in the end `run`.
  readonly #waiting: (() => void)[] = [];
  #failure: { readonly error: unknown } | null = null;
  #isStopped = false;
  // The end of the grace, and what tells that it is over.
  #graceEndsAt = Infinity;
  #graceTimer: NodeJS.Timeout | undefined;
  #endGrace: () => void = () => undefined;
  readonly #graceOver = new Promise<void>((resolve) => {
    this.#endGrace = resolve;
  });

  /** @internal */
  constructor(
    base: WorkerBase,
    handler: Handler | BatchHandler,
    options: WorkerOptions | BatchWorkerOptions,
  ) {
    if (typeof handler !== "function") throw new TypeError("a worker needs a handler");
    this.#base = base;
    this.#onEvent = options.onEvent;
    const { handlerTimeoutMs = 0, graceMs = DEFAULT_GRACE_MS } = options;
    this.#handlerTimeoutMs = checkedMs("handlerTimeoutMs", handlerTimeoutMs);
    this.#graceMs = checkedMs("graceMs", graceMs);
    this.#concurrency = positive("concurrency", options.concurrency ?? DEFAULT_CONCURRENCY);
    this.#batchMax = positive("batchSize", options.batchSize ?? 1);
    const atOnce = this.#concurrency * this.#batchMax;
    const prefetch = positive("prefetch", options.prefetch ?? 2 * atOnce);
    this.#settlingMax = Math.max(prefetch, atOnce);
    this.#opening = {
      maxInFlight: this.#settlingMax,
      batchSize: Math.max(DEFAULT_BATCH_SIZE, this.#batchMax),
      visibilityTimeoutMs: options.visibilityTimeoutMs,
      isHolding: true,
    };
    this.#handle = composed(handler, options);
  }

  /**
   * Handles messages until the worker is stopped, and resolves when all is settled. Rejects with
   * what ends a consumer, such as a QueueNotFoundError, after its handlers are done.
   */
  run(options: RunOptions = {}): Promise<void> {
    if (this.#ended !== null) {
      return Promise.reject(new Error("a worker runs once; make another one"));
    }
    this.#ended = this.#run(options);
    return this.#ended;
  }

  /**
   * Takes no more messages, gives handlers some time to finish, and gives back what is left then.
   * Resolves when all is settled. Another stop may make the time shorter.
   */
  async stop({ graceMs = this.#graceMs }: StopOptions = {}): Promise<void> {
    this.#stop(checkedMs("graceMs", graceMs));
    await this.#ended?.catch(() => undefined);
  }

  async #run({ signal, signals = true }: RunOptions): Promise<void> {
    if (signal?.aborted || this.#isStopped) return;
    const consumer = this.#base.open(this.#opening);
    this.#consumer = consumer;
    const forget = onAbort(signal, () => {
      this.#stop(this.#graceMs);
    });
    const onSignal = (): void => {
      this.#stop(this.#isStopped ? 0 : this.#graceMs);
    };
    const ignore = signals ? onSignals(onSignal) : () => undefined;
    try {
      const loops = Array.from({ length: this.#concurrency }, () => this.#loop(consumer));
      await Promise.race([Promise.all(loops), this.#graceOver]);
      for (const handling of this.#running) this.#giveBack(handling);
      await consumer.close();
      while (this.#settling > 0) await this.#settledOne();
    } finally {
      ignore();
      forget();
      clearTimeout(this.#graceTimer);
    }
    if (this.#failure !== null) throw this.#failure.error;
  }

  #stop(graceMs: number): void {
    this.#isStopped = true;
    void this.#consumer?.close();
    const endsAt = performance.now() + graceMs;
    if (endsAt >= this.#graceEndsAt) return;
    this.#graceEndsAt = endsAt;
    clearTimeout(this.#graceTimer);
    if (this.#consumer === null) return;
    this.#graceTimer = setTimeout(this.#endGrace, graceMs);
  }

  async #loop(consumer: Consumer): Promise<void> {
    try {
      for (;;) {
        while (this.#settling >= this.#settlingMax) await this.#settledOne();
        const messages = await consumer.take(this.#batchMax);
        if (messages.length === 0) break;
        await this.#handleAll(messages);
      }
      // The consumer may have been closed with its client.
      if (this.#failure === null) this.#stop(this.#graceMs);
    } catch (error) {
      this.#failure ??= { error };
    }
  }

  #settledOne(): Promise<void> {
    return new Promise((resolve) => {
      this.#waiting.push(resolve);
    });
  }

  async #handleAll(messages: ConsumeMessage[]): Promise<void> {
    const handling = new Handling(messages);
    this.#running.add(handling);
    const timer =
      this.#handlerTimeoutMs > 0
        ? setTimeout(() => {
            this.#timedOut(handling);
          }, this.#handlerTimeoutMs)
        : undefined;
    let failure: { readonly error: unknown } | null = null;
    try {
      await processingAll(messages, () => this.#handle(messages, handling));
    } catch (error) {
      failure = { error };
    }
    clearTimeout(timer);
    this.#running.delete(handling);
    if (handling.isDecided) return;
    if (failure === null) this.#settle(handling, "acked", undefined, (all) => this.#ack(all));
    else this.#failed(handling, failure.error);
  }

  // --- Outcomes ----------------------------------------------------------------------------------

  #failed(handling: Handling, error: unknown): void {
    if (error instanceof Backpressure) {
      const { retryAfterMs, throttleKey } = error;
      this.#nack(handling, "put_off", error, error.message, { retryAfterMs, throttleKey });
    } else if (error instanceof DeadLetter) {
      this.#nack(handling, "dead_lettered", error, error.message, { deadLetter: true });
    } else {
      this.#nack(handling, "nacked", error, wordsOf(error), {});
    }
  }

  #timedOut(handling: Handling): void {
    const words = `handler timed out after ${this.#handlerTimeoutMs / 1_000} s`;
    const error = new DOMException(words, "TimeoutError");
    const { seconds } = handling;
    for (const message of handling.messages) this.#tell("timed_out", message, seconds, error);
    this.#nack(handling, "nacked", error, words, {});
    handling.abort(error);
  }

  #giveBack(handling: Handling): void {
    // It is told in any case; its messages may be settled already.
    const error = new DOMException("the worker was stopped", "AbortError");
    if (!handling.isDecided) this.#nack(handling, "given_back", undefined, "", { retryAfterMs: 0 });
    handling.abort(error);
  }

  #nack(
    handling: Handling,
    kind: WorkerEventKind,
    error: unknown,
    words: string,
    options: NackOptions,
  ): void {
    const cut = cutToBytes(words, ERROR_BYTES_MAX);
    this.#settle(handling, kind, error, (messages) =>
      Promise.all(
        messages.map((message) =>
          this.#base.settler.nack(message, cut, options).then(() => null, refused),
        ),
      ),
    );
  }

  #ack(messages: readonly ConsumeMessage[]): Promise<unknown[]> {
    const [first] = messages;
    if (messages.length > 1 || first === undefined) return this.#base.settler.ackMany(messages);
    return this.#base.settler.ack(first, {}).then(() => [null], (error: unknown) => [error]);
  }

  /** Settles what the handler did not settle itself, beside the handlers. */
  #settle(
    handling: Handling,
    kind: WorkerEventKind,
    error: unknown,
    send: (messages: readonly ConsumeMessage[]) => Promise<unknown[]>,
  ): void {
    handling.isDecided = true;
    this.#settling += 1;
    void this.#settleNow(handling, kind, error, send);
  }

  async #settleNow(
    { messages, seconds }: Handling,
    kind: WorkerEventKind,
    error: unknown,
    send: (messages: readonly ConsumeMessage[]) => Promise<unknown[]>,
  ): Promise<void> {
    const open = messages.filter((message) => !ConsumeMessage.isSettled(message));
    try {
      const outcomes = open.length === 0 ? [] : await send(open);
      open.forEach((message, index) => {
        const outcome = outcomes[index];
        if (outcome === null) this.#tell(kind, message, seconds, error);
        else this.#settleFailed(message, seconds, outcome);
      });
    } catch (cause) {
      for (const message of open) this.#settleFailed(message, seconds, cause);
    }
    // Until here the leases are kept, so that there is something to settle.
    for (const message of messages) this.#base.leases.release(message);
    this.#settling -= 1;
    this.#waiting.shift()?.();
  }

  #settleFailed(message: ConsumeMessage, seconds: number, error: unknown): void {
    this.#tell("settle_failed", message, seconds, error);
    const words = error instanceof FilaError ? error.message : wordsOf(error);
    const text = `message ${message.id} of queue "${message.queue}" was not settled: ${words}`;
    warn("FILA_SETTLE_FAILED", text);
  }

  #tell(
    kind: WorkerEventKind,
    message: ConsumeMessage,
    seconds: number,
    error: unknown,
  ): void {
    if (this.#onEvent === undefined) return;
    const failed = (cause: unknown): void => {
      warn("FILA_EVENT_HANDLER_FAILED", `onEvent failed: ${wordsOf(cause)}`);
    };
    try {
      const told = this.#onEvent({ kind, message, seconds, error });
      if (told instanceof Promise) told.catch(failed);
    } catch (cause) {
      failed(cause);
    }
  }
}

// --- Signals -------------------------------------------------------------------------------------

// One listener for all workers: Node.js warns of a leak when a process has more than ten.
const listening = new Set<() => void>();

function signalled(): void {
  for (const act of [...listening]) act();
}

/** Calls `act` when the process is told to end. Returns what ends the wait. */
function onSignals(act: () => void): () => void {
  if (listening.size === 0) for (const name of SIGNALS) process.on(name, signalled);
  listening.add(act);
  return () => {
    listening.delete(act);
    if (listening.size === 0) for (const name of SIGNALS) process.off(name, signalled);
  };
}

// --- Parts ---------------------------------------------------------------------------------------

/** The handler inside its middleware, for a list of messages. */
function composed(
  handler: Handler | BatchHandler,
  { batchSize, middleware = [] }: WorkerOptions | BatchWorkerOptions,
): Handle {
  type Step = (subject: unknown, context: HandlerContext) => unknown;
  const layers = middleware as readonly Middleware<unknown>[];
  const first = layers.reduceRight<Step>(
    (next, layer) => (subject, context) =>
      layer(subject, () => later(() => next(subject, context)), context),
    handler as Step,
  );
  if (batchSize !== undefined) return first;
  return (messages, context) => first(messages[0], context);
}

/** What throws at once rejects, so that middleware has one way to see it. */
function later(act: () => unknown): Promise<unknown> {
  return new Promise((resolve) => {
    resolve(act());
  });
}

function refused(error: unknown): unknown {
  return error;
}

/** The text without what is beyond so many bytes of UTF-8. */
function cutToBytes(words: string, max: number): string {
  if (words.length * 3 <= max) return words;
  const { read } = new TextEncoder().encodeInto(words, new Uint8Array(max));
  return words.slice(0, read);
}

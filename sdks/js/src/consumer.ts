// SPDX-License-Identifier: AGPL-3.0-only
// A stream of leased messages that outlives its connection.
//
//     open --frames--> unread --> application          close() from anywhere ends it
//      ^                 |
//      '-- wait <-- UNAVAILABLE, or the broker ended the stream       any other error is thrown
//
// Frames are read as they come: only then is it known when their leases began. The broker's credit
// (`maxInFlight`) bounds what waits here. Leases of what waits are kept, and nothing is handed out
// whose lease has ended. What was never handed out goes back when the consumer is closed: otherwise
// every restart of a worker would hide those messages until their leases end, and count an attempt
// that nobody made.

import { onAbort } from "./abort.js";
import { positive } from "./arguments.js";
import type { Connection, Pass } from "./connection.js";
import { CancelledError, UnavailableError } from "./errors.js";
import { FilaError } from "./errors.js";
import { ConsumeResponse } from "./gen/fila/v1/service.js";
import { Frame } from "./leases.js";
import type { Leases } from "./leases.js";
import { debug, warn } from "./log.js";
import { ConsumeMessage } from "./message.js";
import type { Settler } from "./message.js";
import type { Backoff, ConsumeOptions } from "./options.js";
import type { FrameStream } from "./stream.js";
import { CONSUME, NACK, consumeRequest, join, releaseItem, split } from "./wire.js";

// Giving messages back is a courtesy: their leases end anyway, so it may not hold up a shutdown.
// First come the frames that are about to arrive; then the request that gives all of them back.
const DRAIN_MS = 50;
const RELEASE_TIMEOUT_MS = 1_000;

/** Decides what the end of a stream means, and how long to wait before the next one. */
export class Reconnect {
  readonly #backoff: Backoff;
  readonly #now: () => number;
  readonly #chance: () => number;
  #openedAt = 0;
  #attempts = 0;

  constructor(backoff: Backoff, now = () => performance.now(), chance = Math.random) {
    this.#backoff = backoff;
    this.#now = now;
    this.#chance = chance;
  }

  get isFirst(): boolean {
    return this.#attempts === 0;
  }

  opened(): void {
    this.#openedAt = this.#now();
  }

  received(): void {
    this.#attempts = 0;
  }

  /** The wait after a stream ended; null is an end without an error. Throws a final error. */
  delayMs(error: unknown): number {
    // A broker that stops cancels streams. Nobody here did: a closed consumer does not ask.
    const isPassing = error instanceof UnavailableError || error instanceof CancelledError;
    if (error !== null && !isPassing) throw error;
    // A stream that lasted was a good one, even if its queue was empty all the time.
    if (this.#now() - this.#openedAt > this.#backoff.maximumMs) this.#attempts = 0;
    const delayMs = this.#backoff.delayMs(this.#attempts, this.#chance());
    this.#attempts += 1;
    return delayMs;
  }
}

/** Who waits for messages. */
interface Waiter {
  readonly max: number;
  readonly resolve: (messages: ConsumeMessage[]) => void;
  readonly reject: (error: unknown) => void;
}

/** What consumers of one client share. */
export interface Base {
  readonly connection: Connection;
  readonly settler: Settler;
  readonly leases: Leases;
}

/** How a consumer is opened. */
export interface Opening extends ConsumeOptions {
  /** Whether leases are kept of what was handed out, too, until somebody releases it. */
  readonly isHolding?: boolean;
}

/**
 * Iterates over the messages of a queue as the broker leases them: `for await (const message of
 * client.consume(queue))`. Leaving the loop closes it, and `close()` from anywhere ends the loop.
 * When the connection is lost the iteration goes on with a new one. It throws QueueNotFoundError,
 * PermissionDeniedError and whatever else trying again would not cure.
 *
 * Several loops may share one consumer; each message goes to one of them.
 */
export class Consumer implements AsyncIterableIterator<ConsumeMessage, undefined> {
  readonly #base: Base;
  readonly #queue: string;
  readonly #request: Buffer;
  readonly #options: Opening;
  readonly #forget: () => void;
  readonly #onClose: (consumer: Consumer) => void;
  readonly #reconnect: Reconnect;
  // Received and not handed out, oldest first.
  #unread: ConsumeMessage[] = [];
  readonly #waiting: Waiter[] = [];
  #isOpened = false;
  #stream: FrameStream<ConsumeResponse> | null = null;
  #receivedAt = -Infinity;
  // Since the log said so.
  #isLost = false;
  #waking = new AbortController();
  // What ended the stream for good, until somebody was told.
  #failure: { readonly error: unknown } | null = null;
  #isClosed = false;
  #closing: Promise<void> | null = null;
  #isAborted = false;

  /** @internal */
  constructor(base: Base, queue: string, options: Opening, onClose: (consumer: Consumer) => void) {
    this.#base = base;
    this.#queue = queue;
    this.#request = consumeRequest(queue, options);
    this.#options = options;
    this.#onClose = onClose;
    this.#reconnect = new Reconnect(base.connection.backoff);
    options.signal?.throwIfAborted();
    this.#forget = onAbort(options.signal, () => {
      this.#isAborted = true;
      void this.close();
    });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** The next message; `done` once the consumer is closed. */
  async next(): Promise<IteratorResult<ConsumeMessage, undefined>> {
    const [message] = await this.take(1);
    if (message !== undefined) return { done: false, value: message };
    await this.#checkAborted();
    return { done: true, value: undefined };
  }

  /**
   * Lists of what is there, as messages come: at least one message, at most `max`; nothing lingers.
   * `for await (const messages of consumer.batches(100))`. Ends and fails as the consumer does.
   */
  batches(max = 100): AsyncGenerator<ConsumeMessage[], undefined> {
    return this.#batches(positive("max", max));
  }

  async *#batches(max: number): AsyncGenerator<ConsumeMessage[], undefined> {
    try {
      for (;;) {
        const messages = await this.take(max);
        if (messages.length === 0) break;
        yield messages;
      }
      await this.#checkAborted();
    } finally {
      await this.close();
    }
    return undefined;
  }

  /** Throws the signal's reason, once, if that is what ended the consumer. */
  async #checkAborted(): Promise<void> {
    if (!this.#isAborted) return;
    this.#isAborted = false;
    await this.#closing;
    throw this.#options.signal?.reason;
  }

  /** What leaving a `for await` loop calls. */
  async return(): Promise<IteratorResult<ConsumeMessage, undefined>> {
    await this.close();
    return { done: true, value: undefined };
  }

  /** Ends the stream and gives back what was not handed out. Harmless twice. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /**
   * Up to so many messages of what is there, or the first that comes; none once it is closed.
   * @internal
   */
  take(max: number): Promise<ConsumeMessage[]> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ max, resolve, reject });
      this.#serve();
      if (this.#isOpened || this.#isClosed) return;
      this.#isOpened = true;
      this.#open();
    });
  }

  #serve(): void {
    for (let waiter = this.#waiting[0]; waiter !== undefined; waiter = this.#waiting[0]) {
      const found = this.#isClosed ? [] : this.#pick(waiter.max);
      if (found.length === 0 && !this.#isClosed) break;
      this.#waiting.shift();
      waiter.resolve(found);
    }
    if (this.#waiting.length === 0 || this.#failure === null) return;
    const { error } = this.#failure;
    for (const waiter of this.#waiting.splice(0)) waiter.reject(error);
    void this.close();
  }

  /** The oldest messages whose leases last. */
  #pick(max: number): ConsumeMessage[] {
    const found: ConsumeMessage[] = [];
    if (this.#unread.length === 0) return found;
    const now = performance.now();
    let dropped = 0;
    while (found.length < max) {
      const message = this.#unread.shift();
      if (message === undefined) break;
      if (ConsumeMessage.frameOf(message)?.isGood(message, now)) found.push(message);
      else dropped += 1;
    }
    if (!this.#options.isHolding) for (const message of found) this.#base.leases.release(message);
    this.#dropped(dropped);
    return found;
  }

  /** Some leases of the frame have ended, or were lost. */
  #drop(frame: Frame): void {
    const before = this.#unread.length;
    this.#unread = this.#unread.filter(
      (message) => ConsumeMessage.frameOf(message) !== frame || frame.held.has(message),
    );
    this.#dropped(before - this.#unread.length);
  }

  #dropped(count: number): void {
    if (count === 0) return;
    debug('%d messages of queue "%s" were not handed out: their leases ended', count, this.#queue);
  }

  // --- The stream --------------------------------------------------------------------------------

  #open(): void {
    const { connection } = this.#base;
    this.#reconnect.opened();
    // A first attempt says soon, and in the log, that nobody is there. Later ones wait for the
    // channel, which knows when it is worth trying again.
    const waitForReady = !this.#reconnect.isFirst;
    // An address that swallows everything refuses nothing either.
    const doubt = setTimeout(() => {
      if (!connection.isConnected) this.#lost("no connection so far");
    }, connection.timeoutMs).unref();
    const fail = (error: unknown): void => {
      clearTimeout(doubt);
      if (error instanceof FilaError) this.#ended(error);
      else this.#fail(error);
    };
    const open = (pass: Pass): void => {
      const decode = (bytes: Buffer): ConsumeResponse => ConsumeResponse.decode(bytes);
      const subject = { queue: this.#queue };
      const request = this.#request;
      const reader = {
        opened: () => {
          clearTimeout(doubt);
          this.#found();
        },
        received: (frame: ConsumeResponse) => {
          this.#received(frame);
        },
        ended: (failure: FilaError | null) => {
          clearTimeout(doubt);
          this.#ended(failure);
        },
      };
      this.#stream = connection.stream(
        ...([pass, CONSUME, request, decode, subject, waitForReady, reader] as const),
      );
    };
    try {
      const asked = connection.pass();
      if (!(asked instanceof Promise)) {
        open(asked);
        return;
      }
      asked
        .then((pass) => {
          if (this.#isClosed) clearTimeout(doubt);
          else open(pass);
        })
        .catch(fail);
    } catch (error) {
      fail(error);
    }
  }

  #received({ messages }: ConsumeResponse): void {
    this.#reconnect.received();
    this.#found();
    this.#receivedAt = performance.now();
    const frame = new Frame(messages, this.#base.settler);
    const isExtended = this.#options.extendLeases ?? true;
    this.#base.leases.keep(frame, isExtended, (lost) => {
      this.#drop(lost);
    });
    for (const message of frame.messages) this.#unread.push(message);
    if (!this.#isClosed) this.#serve();
  }

  #ended(failure: FilaError | null): void {
    this.#stream = null;
    if (this.#isClosed) return;
    let delayMs: number;
    try {
      delayMs = this.#reconnect.delayMs(failure);
    } catch (error) {
      this.#fail(error);
      return;
    }
    this.#lost(failure?.message ?? "the broker ended it");
    this.#base.connection.pause(delayMs, this.#waking.signal).then(
      () => {
        if (!this.#isClosed) this.#open();
      },
      () => undefined,
    );
  }

  #fail(error: unknown): void {
    this.#failure = { error };
    this.#serve();
  }

  #lost(reason: string): void {
    if (this.#isLost || this.#isClosed) return;
    this.#isLost = true;
    const text = `the consume stream of queue "${this.#queue}" is lost, trying again: ${reason}`;
    warn("FILA_STREAM_LOST", text);
  }

  #found(): void {
    if (!this.#isLost || this.#isClosed) return;
    this.#isLost = false;
    warn("FILA_STREAM_FOUND", `the consume stream of queue "${this.#queue}" is there again`);
  }

  // --- The end -----------------------------------------------------------------------------------

  async #close(): Promise<void> {
    // Who waits for a message has taken all that came, and only what came just now needs time: the
    // broker takes a frame for unsent, and gives it back, whose stream ends while it is written.
    const isIdle = this.#waiting.length > 0;
    const quietMs = isIdle ? performance.now() - this.#receivedAt : 0;
    this.#isClosed = true;
    this.#forget();
    this.#waking.abort();
    this.#serve();
    if (this.#stream !== null && quietMs < DRAIN_MS) {
      await this.#base.connection.pause(DRAIN_MS - quietMs);
    }
    this.#stream?.cancel();
    this.#stream = null;
    await this.#release();
    this.#onClose(this);
  }

  async #release(): Promise<void> {
    const messages = this.#unread;
    this.#unread = [];
    for (const message of messages) this.#base.leases.release(message);
    const { connection } = this.#base;
    const deadline = performance.now() + Math.min(RELEASE_TIMEOUT_MS, connection.timeoutMs);
    try {
      for (const batch of split(messages.map(releaseItem))) {
        const timeoutMs = deadline - performance.now();
        const sending = { timeoutMs, trace: undefined };
        await connection.send(NACK.method, join(batch), NACK.decode, sending);
      }
    } catch (error) {
      // Of the broker, or of who gives the API key: a close does not fail for it.
      debug("messages not given back, their leases will end: %s", error);
    }
  }
}

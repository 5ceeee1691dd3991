// SPDX-License-Identifier: AGPL-3.0-only
// A stream of leased messages that outlives its connection.
//
//     open --frame--> messages --> application          close() from anywhere ends it
//      ^                |
//      '-- wait <-- UNAVAILABLE, or the broker ended the stream       any other error is thrown
//
// Frames are read only when the application has taken all messages of the one before, so gRPC's
// flow control and the broker's credit (`maxInFlight`) see how fast it really is. What was sent but
// never handed out goes back when the consumer is closed: otherwise every restart of a worker would
// hide those messages until their leases end, and count an attempt that nobody made.

import { debuglog } from "node:util";

import { onAbort } from "./abort.js";
import type { Connection } from "./connection.js";
import { CancelledError, FilaError, UnavailableError } from "./errors.js";
import type { Message as RawMessage } from "./gen/fila/v1/messages.js";
import { ConsumeResponse } from "./gen/fila/v1/service.js";
import { ConsumeMessage } from "./message.js";
import type { Settler } from "./message.js";
import type { Backoff, ConsumeOptions } from "./options.js";
import type { FrameStream } from "./stream.js";
import { CONSUME, NACK, consumeRequest, join, releaseItem, split } from "./wire.js";

// Giving messages back is a courtesy: their leases end anyway, so it may not hold up a shutdown.
// First come the frames that have arrived, or are about to; then the request that gives all of them
// back.
const DRAIN_MS = 50;
const RELEASE_TIMEOUT_MS = 1_000;

// Shown with NODE_DEBUG=fila.
const log = debuglog("fila");

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

/**
 * Iterates over the messages of a queue as the broker leases them: `for await (const message of
 * client.consume(queue))`. Leaving the loop closes it, and `close()` from anywhere ends the loop.
 * When the connection is lost the iteration goes on with a new one. It throws QueueNotFoundError,
 * PermissionDeniedError and whatever else trying again would not cure.
 *
 * Several loops may share one consumer; each message goes to one of them.
 */
export class Consumer implements AsyncIterableIterator<ConsumeMessage, undefined> {
  readonly #settler: Settler;
  readonly #connection: Connection;
  readonly #queue: string;
  readonly #request: Buffer;
  readonly #signal: AbortSignal | undefined;
  readonly #forget: () => void;
  readonly #onClose: (consumer: Consumer) => void;
  readonly #reconnect: Reconnect;
  // Received and not handed out, oldest last, so that taking one is cheap.
  #unread: RawMessage[] = [];
  // Of the frame that is being handed out.
  #frameSize = 0;
  #stream: FrameStream<ConsumeResponse> | null = null;
  // A read that is under way. All who wait for a message wait for it.
  #reading: Promise<void> | null = null;
  #waking = new AbortController();
  #isClosed = false;
  #closing: Promise<void> | null = null;
  #isAborted = false;

  /** @internal */
  constructor(
    settler: Settler,
    connection: Connection,
    queue: string,
    options: ConsumeOptions,
    onClose: (consumer: Consumer) => void,
  ) {
    this.#settler = settler;
    this.#connection = connection;
    this.#queue = queue;
    this.#request = consumeRequest(queue, options);
    this.#signal = options.signal;
    this.#onClose = onClose;
    this.#reconnect = new Reconnect(connection.backoff);
    this.#signal?.throwIfAborted();
    this.#forget = onAbort(this.#signal, () => {
      this.#isAborted = true;
      void this.close();
    });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** The next message; `done` once the consumer is closed. */
  async next(): Promise<IteratorResult<ConsumeMessage, undefined>> {
    while (!this.#isClosed) {
      const raw = this.#unread.pop();
      if (raw !== undefined) return { done: false, value: this.#message(raw) };
      this.#reading ??= this.#readFrame().finally(() => {
        this.#reading = null;
      });
      await this.#reading;
    }
    if (this.#isAborted) {
      this.#isAborted = false;
      await this.#closing;
      throw this.#signal?.reason;
    }
    return { done: true, value: undefined };
  }

  /** What leaving a `for await` loop calls. */
  #message(raw: RawMessage): ConsumeMessage {
    return new ConsumeMessage(raw, this.#settler, this.#frameSize);
  }

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

  #ended(): void {
    this.#isClosed = true;
    this.#forget();
    this.#onClose(this);
  }

  async #close(): Promise<void> {
    this.#ended();
    this.#waking.abort();
    // A read under way means that all frames before it were taken.
    if (this.#reading === null) await this.#drain();
    this.#stream?.cancel();
    await this.#reading?.catch(() => undefined);
    await this.#release();
  }

  async #readFrame(): Promise<void> {
    let failure: unknown = null;
    try {
      this.#stream ??= this.#open();
      const frame = await this.#stream.read();
      if (frame !== null) {
        this.#reconnect.received();
        this.#frameSize = frame.messages.length;
        this.#unread = frame.messages.reverse();
        return;
      }
    } catch (error) {
      failure = error;
    }
    this.#stream = null;
    if (this.#isClosed) return;
    try {
      const delayMs = this.#reconnect.delayMs(failure);
      log('consume stream of queue "%s" was lost, next attempt in %d ms', this.#queue, delayMs);
      await this.#connection.pause(delayMs, this.#waking.signal).catch(() => undefined);
    } catch (error) {
      this.#ended();
      throw error;
    }
  }

  #open(): FrameStream<ConsumeResponse> {
    this.#reconnect.opened();
    // A first attempt says soon, and in the log, that nobody is there. Later ones wait for the
    // channel, which knows when it is worth trying again.
    return this.#connection.stream(
      CONSUME,
      this.#request,
      (bytes) => ConsumeResponse.decode(bytes),
      { queue: this.#queue },
      !this.#reconnect.isFirst,
    );
  }

  /** Takes what was sent already. Ends by itself: the broker sends no more than its credit. */
  async #drain(): Promise<void> {
    const stream = this.#stream;
    if (stream === null) return;
    const timer = setTimeout(() => {
      stream.cancel();
    }, DRAIN_MS);
    try {
      for (let frame = await stream.read(); frame !== null; frame = await stream.read()) {
        this.#unread = frame.messages.reverse().concat(this.#unread);
      }
    } catch {
      // Cancelled by the timer, or lost.
    } finally {
      clearTimeout(timer);
    }
  }

  async #release(): Promise<void> {
    const messages = this.#unread.reverse();
    this.#unread = [];
    const deadline =
      performance.now() + Math.min(RELEASE_TIMEOUT_MS, this.#connection.timeoutMs);
    try {
      for (const batch of split(messages.map(releaseItem))) {
        await this.#connection.send(NACK.method, join(batch), NACK.decode, {
          timeoutMs: deadline - performance.now(),
          trace: undefined,
          isFarewell: true,
        });
      }
    } catch (error) {
      if (!(error instanceof FilaError)) throw error;
      log("messages not given back, their leases will end: %s", error.message);
    }
  }
}

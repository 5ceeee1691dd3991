// SPDX-License-Identifier: AGPL-3.0-only
// What goes in and what comes out: messages to enqueue, their results, messages delivered. Does no
// I/O: settling goes through the client that received the message.

import { member } from "./enums.js";
import type { FilaError } from "./errors.js";
import { FailureCause as RawCause } from "./gen/fila/v1/messages.js";
import type { Failure as RawFailure, Message as RawMessage } from "./gen/fila/v1/messages.js";
import type { Frame } from "./leases.js";
import type { CallOptions } from "./options.js";

// What comes out is what was put in, a mark at the beginning too.
const UTF_8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** What a producer may say about a message, beside its headers and its payload. */
export interface MessageOptions {
  /** Who the message belongs to, usually a tenant; keys with messages waiting take turns. */
  readonly fairnessKey?: string | undefined;
  /** The fairness key's share of the deliveries, 1 to 1000. */
  readonly weight?: number | undefined;
  /** The limits that a delivery takes tokens from. */
  readonly throttleKeys?: readonly string[] | undefined;
  /** Tokens taken from each of them, 1 unless told otherwise. */
  readonly throttleCost?: number | undefined;
  /** Not delivered before this many milliseconds have passed. Excludes `deliverAt`. */
  readonly delayMs?: number | undefined;
  /** Not delivered before this time. Excludes `delayMs`. */
  readonly deliverAt?: Date | undefined;
  /** Dropped when not delivered within this many milliseconds. */
  readonly ttlMs?: number | undefined;
  /** A second enqueue with the same key stores nothing and returns the first id. */
  readonly idempotencyKey?: string | undefined;
}

/** Text pairs that travel with a message; hooks can read them. */
export type Headers = Readonly<Record<string, string>>;

/**
 * What a message holds: bytes, a text that is sent as UTF-8, or a value that is sent as JSON. No
 * header says which: what was put in is what comes out.
 */
export type Payload = Uint8Array | { readonly text: string } | { readonly json: unknown };

/** One message for `enqueueMany`. */
export interface EnqueueMessage extends MessageOptions {
  readonly queue: string;
  readonly headers?: Headers | null | undefined;
  readonly payload?: Payload | null | undefined;
}

/** What became of one message: its id, or the error that kept it from being stored. */
export class EnqueueResult {
  /** The id that the broker gave it; empty when refused. */
  readonly messageId: string;
  /** True when the idempotency key was known: nothing new was stored. */
  readonly duplicate: boolean;
  readonly error: FilaError | null;

  constructor(messageId: string, duplicate: boolean, error: FilaError | null = null) {
    this.messageId = messageId;
    this.duplicate = duplicate;
    this.error = error;
  }

  /** The message's id. Throws the error if there is one. */
  unwrap(): string {
    if (this.error !== null) throw this.error;
    return this.messageId;
  }
}

/** A kind of failure; the last two are what dead-lettered the message. */
export type FailureCause = "nack" | "expired" | "max_attempts" | "hook";

/** One failure of a message. */
export interface Failure {
  readonly failedAt: Date | null;
  /** Null for a cause that only a newer broker knows. */
  readonly cause: FailureCause | null;
  /** What was said about it, cut to 256 bytes. */
  readonly error: string;
}

export function readFailure(raw: RawFailure): Failure {
  return {
    failedAt: raw.failedAt ?? null,
    cause: member(RawCause, raw.cause) as FailureCause | null,
    error: raw.error,
  };
}

/** A message as the broker holds it. `Client.peek` shows these; they cannot be settled. */
export class Message {
  readonly id: string;
  readonly queue: string;
  readonly headers: Headers;
  readonly payload: Buffer;
  readonly fairnessKey: string;
  readonly weight: number;
  readonly throttleKeys: readonly string[];
  /** Failed or expired deliveries so far. */
  readonly attemptCount: number;
  /** Proof of this delivery; empty on a message that is not leased. */
  readonly leaseToken: string;
  /** What the most recent nack said; empty when nothing has failed. */
  readonly lastError: string;
  /** The last five failures, oldest first; a redrive keeps them. */
  readonly failures: readonly Failure[];
  readonly enqueuedAt: Date | null;
  /** When the lease ends unless it is extended; null on a message that is not leased. */
  leaseExpiresAt: Date | null;

  /** @internal */
  constructor(raw: RawMessage) {
    const { metadata, timestamps } = raw;
    this.id = raw.id;
    this.queue = metadata?.queueId ?? "";
    // Not by assignment, which would take a header called __proto__ for something else.
    this.headers = Object.fromEntries(raw.headers);
    this.payload = raw.payload;
    this.fairnessKey = metadata?.fairnessKey ?? "";
    this.weight = metadata?.weight ?? 0;
    this.throttleKeys = metadata?.throttleKeys ?? [];
    this.attemptCount = metadata?.attemptCount ?? 0;
    this.leaseToken = metadata?.leaseToken ?? "";
    this.lastError = metadata?.lastError ?? "";
    this.failures = metadata?.failures.map(readFailure) ?? [];
    this.enqueuedAt = timestamps?.enqueuedAt ?? null;
    this.leaseExpiresAt = timestamps?.leaseExpiresAt ?? null;
  }

  /** The payload as text. Throws a TypeError that names the message if it is not UTF-8. */
  get text(): string {
    try {
      return UTF_8.decode(this.payload);
    } catch {
      throw new TypeError(`${this.#payloadWords} is not UTF-8`);
    }
  }

  /** The payload as JSON. Throws a SyntaxError that names the message if it is not. */
  json(): unknown {
    const { text } = this;
    try {
      return JSON.parse(text);
    } catch {
      // The parser's own error shows the text, which may be private.
      throw new SyntaxError(`${this.#payloadWords} is not JSON`);
    }
  }

  get #payloadWords(): string {
    return `the payload of message ${this.id} of queue "${this.queue}"`;
  }
}

/** A delivery that can be settled: a delivered message, or just what names one. */
export type Delivery = Pick<Message, "id" | "queue" | "leaseToken">;

/** Options of a nack. */
export interface NackOptions extends CallOptions {
  /** Backpressure, not failure: the message comes back after this time, with no attempt counted. */
  readonly retryAfterMs?: number | undefined;
  /** With `retryAfterMs`: this throttle key lets nothing through, for anybody, until then. */
  readonly throttleKey?: string | undefined;
  /** Trying again would not help: it becomes a dead letter at once. Excludes `retryAfterMs`. */
  readonly deadLetter?: boolean | undefined;
}

/** How a message reaches the client that received it. */
export interface Settler {
  ack(delivery: Delivery, options: CallOptions): Promise<void>;
  nack(delivery: Delivery, error: string, options: NackOptions): Promise<void>;
  extend(delivery: Delivery, ms: number | undefined, options: CallOptions): Promise<Date>;
  ackMany(deliveries: readonly Delivery[]): Promise<(FilaError | null)[]>;
}

/** A message that was delivered and waits to be settled. */
export class ConsumeMessage extends Message {
  readonly #settler: Settler;
  readonly #frame: Frame;
  #isSettled = false;

  /** @internal */
  constructor(raw: RawMessage, settler: Settler, frame: Frame) {
    super(raw);
    this.#settler = settler;
    this.#frame = frame;
  }

  /** @internal */
  static frameOf(delivery: Delivery): Frame | null {
    return #frame in delivery ? delivery.#frame : null;
  }

  /**
   * Remembers that the application has decided what becomes of it.
   * @internal
   */
  static settle(delivery: Delivery): void {
    if (#frame in delivery) delivery.#isSettled = true;
  }

  /**
   * Remembers that the application chooses the end of its lease.
   * @internal
   */
  static extending(delivery: Delivery): void {
    if (!(#frame in delivery)) return;
    if (!delivery.#frame.held.has(delivery)) delivery.#frame.hasOwnEnds = true;
  }

  /** @internal */
  static extended(delivery: Delivery, end: Date): void {
    if (#frame in delivery) delivery.leaseExpiresAt = end;
  }

  /** @internal */
  static isSettled(message: ConsumeMessage): boolean {
    return message.#isSettled;
  }

  /** Reports that the message was processed; it is gone. Fails as `Client.ack` does. */
  ack(options: CallOptions = {}): Promise<void> {
    return this.#settler.ack(this, options);
  }

  /** Reports that processing failed: the message is retried or dead-lettered. */
  nack(error = "", options: NackOptions = {}): Promise<void> {
    return this.#settler.nack(this, error, options);
  }

  /** Prolongs the lease to `ms` from now, and returns its new end. */
  async extend(ms?: number, options: CallOptions = {}): Promise<Date> {
    ConsumeMessage.extending(this);
    const end = await this.#settler.extend(this, ms, options);
    ConsumeMessage.extended(this, end);
    return end;
  }
}

/** How many messages came together with this one; 0 if nobody knows. */
export function frameSizeOf(delivery: Delivery): number {
  return ConsumeMessage.frameOf(delivery)?.size ?? 0;
}

/** The deliveries, now that the application has decided what becomes of them. */
export function settled(deliveries: Iterable<Delivery>): Delivery[] {
  const found = Array.from(deliveries);
  for (const delivery of found) ConsumeMessage.settle(delivery);
  return found;
}

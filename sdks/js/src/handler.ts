// SPDX-License-Identifier: AGPL-3.0-only
// What a worker's user writes and reads: handlers, middleware, options and events, and what a
// handler throws to say more than that it failed. Does nothing.

import { UINT64_MAX, text, whole } from "./arguments.js";
import type { ConsumeMessage } from "./message.js";

/** What a handler throws when it is not the message's fault: it comes back, and nothing counts. */
export class Backpressure extends Error {
  readonly retryAfterMs: number;
  readonly throttleKey: string;

  /** With `throttleKey`, that key lets nothing through, for anybody, until then. */
  constructor(options: {
    readonly retryAfterMs: number;
    readonly throttleKey?: string | undefined;
    readonly reason?: string | undefined;
  }) {
    super(text("reason", options.reason));
    this.name = "Backpressure";
    if (options.retryAfterMs === undefined) throw new TypeError("retryAfterMs is missing");
    this.retryAfterMs = whole("retryAfterMs", options.retryAfterMs, UINT64_MAX);
    this.throttleKey = text("throttleKey", options.throttleKey);
  }
}

/** What a handler throws when trying again would not help: a dead letter at once. */
export class DeadLetter extends Error {
  constructor(reason = "", options?: ErrorOptions) {
    super(text("reason", reason), options);
    this.name = "DeadLetter";
  }
}

/** What became of a message. */
export type WorkerEventKind =
  | "acked"
  | "nacked"
  | "dead_lettered"
  | "put_off"
  | "given_back"
  | "timed_out"
  | "settle_failed";

/** Something that happened to one message. */
export interface WorkerEvent {
  readonly kind: WorkerEventKind;
  readonly message: ConsumeMessage;
  /** How long it was handled. */
  readonly seconds: number;
  /** What the handler threw, or why settling failed; undefined if there is nothing to say. */
  readonly error: unknown;
}

/** What handlers and middleware get beside the message. */
export interface HandlerContext {
  /** Aborted when the handler is too slow, and at the end of the grace. */
  readonly signal: AbortSignal;
}

export type Handler = (message: ConsumeMessage, context: HandlerContext) => unknown;
export type BatchHandler = (messages: ConsumeMessage[], context: HandlerContext) => unknown;

/** Runs around a handler, and around the middleware after it, which is `next`. */
export type Middleware<S = ConsumeMessage> = (
  subject: S,
  next: () => Promise<unknown>,
  context: HandlerContext,
) => unknown;

/** Options of every worker. */
export interface CommonOptions {
  /** How many handlers run at a time, 10 unless told otherwise. */
  readonly concurrency?: number | undefined;
  /** The most messages leased to the worker at a time: twice what handlers have, or more. */
  readonly prefetch?: number | undefined;
  /** How long each lease lasts, instead of the queue's; it is extended while handlers run. */
  readonly visibilityTimeoutMs?: number | undefined;
  /** A handler that takes longer has failed; there is no limit unless told otherwise. */
  readonly handlerTimeoutMs?: number | undefined;
  /** What handlers get to finish after a stop, 20,000 unless told otherwise. */
  readonly graceMs?: number | undefined;
  /** Called with each event. What it throws is logged and changes nothing. */
  readonly onEvent?: ((event: WorkerEvent) => unknown) | undefined;
}

/** Options of a worker whose handler gets one message. */
export interface WorkerOptions extends CommonOptions {
  readonly batchSize?: undefined;
  /** Outermost first. */
  readonly middleware?: readonly Middleware[] | undefined;
}

/** Options of a worker whose handler gets a list. */
export interface BatchWorkerOptions extends CommonOptions {
  /** The most messages of a batch; it is made of what is there, and nothing lingers. */
  readonly batchSize: number;
  /** Outermost first. */
  readonly middleware?: readonly Middleware<ConsumeMessage[]>[] | undefined;
}

/** Options of `run`. */
export interface RunOptions {
  /** Stops the worker. */
  readonly signal?: AbortSignal | undefined;
  /** Whether SIGTERM and SIGINT stop it, too; true unless told otherwise. */
  readonly signals?: boolean | undefined;
}

/** Options of `stop`. */
export interface StopOptions {
  /** What handlers get to finish from now on, instead of the worker's own. */
  readonly graceMs?: number | undefined;
}

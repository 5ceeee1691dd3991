// SPDX-License-Identifier: AGPL-3.0-only
// Batch requests travel through two streams of the client: enqueues through one, settlements
// through the other, since an enqueue waits for the broker's disk and an ack does not. A message of
// a stream costs a fraction of a call. What a caller sees is what a unary call would show it.
//
//     waiting --written--> under way --answers, in order--> caller
//        |                    |
//        '-- next stream      '-- the stream's end, deadline, abort: the outcome is unknown
//
// A stream that nobody has used for a moment is ended, and the next batch opens another: an open
// one keeps the process alive, and a client that does nothing must not. Opening one costs what a
// unary call costs, so those who call rarely lose nothing.

import { status } from "@grpc/grpc-js";
import type { ClientDuplexStream, StatusObject } from "@grpc/grpc-js";

import { onAbort } from "./abort.js";
import { tooLate } from "./connection.js";
import type { Connection, Pass, Sending } from "./connection.js";
import { ClientClosedError, InternalError, UnavailableError } from "./errors.js";
import { PipelineResponse } from "./gen/fila/v1/service.js";
import { BATCH_BYTES_MAX, PIPELINE, envelope, refusal } from "./wire.js";
import type { Batch, Results } from "./wire.js";

// More than the coalescers have under way together. What `...Many` calls have beyond it waits here,
// where it can still be taken back.
const REQUESTS_UNDER_WAY_MAX = 16;
// Longer than a round trip in a data centre, and too short to be noticed when a process ends.
const IDLE_MS = 50;
// Nobody waits for what is still under way then.
const DRAIN_MS = 200;

const NOT_ANSWERED = "no answer came in time; the outcome is unknown";
const NOT_SENT = "no answer to earlier requests came in time; this one was not sent";

type AnyBatch = Batch<unknown>;

/** What a request gets where the broker knows no pipelines: it was not applied. */
const UNSPOKEN = Symbol("the broker knows no pipelines");

/** One request and its caller. */
class Request {
  readonly #timer: NodeJS.Timeout;
  readonly #forget: () => void;
  isSent = false;
  isGone = false;

  constructor(
    readonly rpc: AnyBatch,
    readonly bytes: Buffer,
    readonly pass: Pass,
    { timeoutMs, signal }: Sending,
    readonly resolve: (results: Results) => void,
    readonly reject: (error: unknown) => void,
    readonly onLeave: () => void,
  ) {
    this.#timer = setTimeout(() => {
      this.fail(tooLate(this.isSent ? NOT_ANSWERED : NOT_SENT));
    }, timeoutMs);
    this.#forget = onAbort(signal, () => {
      this.fail(signal?.reason);
    });
  }

  succeed(results: Results): void {
    if (this.#leave()) this.resolve(results);
  }

  fail(error: unknown): void {
    if (this.#leave()) this.reject(error);
  }

  #leave(): boolean {
    if (this.isGone) return false;
    this.isGone = true;
    clearTimeout(this.#timer);
    this.#forget();
    this.onLeave();
    return true;
  }
}

/** One stream, from its opening to its status. */
interface Stream {
  readonly call: ClientDuplexStream<Buffer, Buffer>;
  /** What it was let in with, and all of its requests with it. */
  readonly pass: Pass;
  /** Written and not answered, oldest first. */
  readonly underWay: Request[];
  readonly idle: NodeJS.Timeout;
  isWriting: boolean;
  hasAnswered: boolean;
  /** Ends what waits for its end. */
  forget: () => void;
}

/** Requests of one kind, in order, through one stream after the other. */
class Pipeline {
  readonly #connection: Connection;
  #waiting: Request[] = [];
  #stream: Stream | null = null;
  #callers = 0;
  #usedAt = 0;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** Rejects as the unary call would, or with UNSPOKEN. */
  send(rpc: AnyBatch, bytes: Buffer, pass: Pass, sending: Sending): Promise<Results> {
    return new Promise((resolve, reject) => {
      this.#connection.checkUncut();
      sending.signal?.throwIfAborted();
      if (sending.timeoutMs <= 0) throw tooLate("the deadline passed before the request was sent");
      const left = (): void => {
        this.#callers -= 1;
        this.#usedAt = performance.now();
      };
      this.#waiting.push(new Request(rpc, bytes, pass, sending, resolve, reject, left));
      this.#callers += 1;
      this.#write();
    });
  }

  #write(): void {
    while (this.#waiting[0]?.isGone) this.#waiting.shift();
    const next = this.#waiting[0];
    if (next === undefined) return;
    if (this.#stream !== null && this.#stream.pass.apiKey !== next.pass.apiKey) this.#retire();
    const stream = (this.#stream ??= this.#open(next.pass));
    // gRPC holds one message until the peer's flow control takes it.
    if (stream.isWriting || stream.underWay.length >= REQUESTS_UNDER_WAY_MAX) return;
    this.#waiting.shift();
    next.isSent = true;
    stream.underWay.push(next);
    stream.isWriting = true;
    stream.call.write(next.bytes, () => {
      stream.isWriting = false;
      this.#write();
    });
  }

  #open(pass: Pass): Stream {
    const call = this.#connection.duplex(pass, PIPELINE);
    const stream: Stream = {
      call,
      pass,
      underWay: [],
      idle: setTimeout(() => {
        this.#checkIdle(stream);
      }, IDLE_MS).unref(),
      isWriting: false,
      hasAnswered: false,
      forget: this.#connection.onCut(() => {
        this.#cut(stream);
      }),
    };
    call.on("data", (bytes: Buffer) => {
      this.#received(stream, bytes);
    });
    // With a status that is not OK there is an error first, which is that status too.
    call.on("error", (error: Error & StatusObject) => {
      this.#ended(stream, error);
    });
    call.on("status", (ended: StatusObject) => {
      this.#ended(stream, ended);
    });
    return stream;
  }

  #received(stream: Stream, bytes: Buffer): void {
    const request = stream.underWay[0];
    try {
      const answer = PipelineResponse.decode(bytes);
      const results = request && answer[request.rpc.call]?.results;
      if (results !== undefined) {
        request?.succeed(results);
      } else if (answer.error !== undefined && request) {
        request.fail(this.#refusal(answer.error, stream.pass));
      } else {
        throw new Error("it answers no request that is under way");
      }
    } catch (cause) {
      const text = "the broker sent an answer that cannot be read";
      this.#fail(stream, () => new InternalError(text, { code: "INTERNAL", cause }));
      stream.call.cancel();
      return;
    }
    stream.underWay.shift();
    stream.hasAnswered = true;
    this.#write();
  }

  #refusal(error: NonNullable<PipelineResponse["error"]>, pass: Pass): Error {
    return refusal({ ...error, message: this.#connection.redacted(error.message, pass) }, {});
  }

  #ended(stream: Stream, ended: StatusObject): void {
    stream.forget();
    clearTimeout(stream.idle);
    this.#fail(stream, () => {
      // Who answered knows pipelines, whatever this is.
      if (ended.code === status.UNIMPLEMENTED && !stream.hasAnswered) return UNSPOKEN;
      if (ended.code !== status.OK) return this.#connection.failure(ended, {}, stream.pass);
      return new UnavailableError("the broker ended the pipeline", { code: "UNAVAILABLE" });
    });
    this.#write();
  }

  /** Takes the stream out of use; whoever waits for its answers gets the error. */
  #fail(stream: Stream, error: () => unknown): void {
    if (this.#stream === stream) this.#stream = null;
    for (const request of stream.underWay.splice(0)) request.fail(error());
  }

  /** There is another API key: the stream takes nothing more, and what is under way is answered. */
  #retire(): void {
    clearTimeout(this.#stream?.idle);
    this.#stream?.call.end();
    this.#stream = null;
  }

  #checkIdle(stream: Stream): void {
    if (this.#callers > 0 || performance.now() - this.#usedAt < IDLE_MS) {
      stream.idle.refresh();
      return;
    }
    this.#stream = null;
    this.#end(stream);
  }

  /** The client is closed: nobody waits any longer. */
  #cut(stream: Stream): void {
    for (const request of [...this.#waiting.splice(0), ...stream.underWay]) {
      request.fail(new ClientClosedError());
    }
    this.#stream = null;
    this.#end(stream);
  }

  /** Lets the broker finish what it has, for a moment. */
  #end(stream: Stream): void {
    stream.forget();
    stream.call.end();
    const timer = setTimeout(() => {
      stream.call.cancel();
    }, DRAIN_MS).unref();
    stream.forget = () => {
      clearTimeout(timer);
    };
  }
}

/** Sends batches: through pipelines where the broker knows them, else as unary calls. */
export class Pipelines {
  readonly connection: Connection;
  readonly #enqueues: Pipeline;
  readonly #settlements: Pipeline;
  #isSpoken: boolean;

  constructor(connection: Connection) {
    this.connection = connection;
    // A message beyond the client's own limit ends the stream too.
    this.#isSpoken = connection.messageBytesMax >= BATCH_BYTES_MAX;
    this.#enqueues = new Pipeline(connection);
    this.#settlements = new Pipeline(connection);
  }

  /** Sends one batch request. Rejects with what the unary call would fail with. */
  async send<T>(rpc: Batch<T>, request: Buffer, sending: Sending): Promise<Results> {
    const deadline = performance.now() + sending.timeoutMs;
    const bytes = envelope(rpc, request);
    // A trace is metadata, which a stream has only once. A large request may be refused by ending
    // the stream, and that must not meet others.
    if (this.#isSpoken && sending.trace === undefined && bytes.length <= BATCH_BYTES_MAX) {
      const pipeline = rpc.call === "enqueue" ? this.#enqueues : this.#settlements;
      try {
        const asked = this.connection.pass();
        if (!(asked instanceof Promise)) return await pipeline.send(rpc, bytes, asked, sending);
        const { timeoutMs, signal } = sending;
        const pass = await this.connection.within(asked, timeoutMs, signal);
        const remaining = { ...sending, timeoutMs: deadline - performance.now() };
        return await pipeline.send(rpc, bytes, pass, remaining);
      } catch (error) {
        if (error !== UNSPOKEN) throw error;
        this.#isSpoken = false;
      }
    }
    const timeoutMs = deadline - performance.now();
    const response = await this.connection.send(rpc.method, request, rpc.decode, {
      ...sending,
      timeoutMs,
    });
    return response.results;
  }
}

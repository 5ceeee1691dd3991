// SPDX-License-Identifier: AGPL-3.0-only
// The connection of a client: how it is set up, what every call carries, and what failures mean.
// Nothing here knows which calls exist or what they are for.

import { Metadata, status } from "@grpc/grpc-js";
import type {
  ClientDuplexStream,
  ClientOptions as GrpcOptions,
  StatusObject,
} from "@grpc/grpc-js";

import { onAbort } from "./abort.js";
import {
  about,
  ClientClosedError,
  DeadlineExceededError,
  FilaError,
  fromStatus,
  UnauthenticatedError,
  UnavailableError,
} from "./errors.js";
import type { Subject } from "./errors.js";
import {
  Backoff,
  DEFAULT_MESSAGE_BYTES_MAX,
  DEFAULT_TIMEOUT_MS,
  TIMER_MS_MAX,
  addressesOf,
  boundedMs,
  checkedApiKey,
  checkedTimeoutMs,
} from "./options.js";
import type { CallOptions, ClientOptions } from "./options.js";
import { Route } from "./route.js";
import { FrameStream } from "./stream.js";
import type { Reader } from "./stream.js";
import { currentTrace } from "./tracing.js";
import type { TraceContext } from "./tracing.js";
import { VERSION } from "./version.js";

// Below the 60 s after which NAT tables and load balancers forget idle connections, and above the
// interval from which the broker takes pings for a flood.
const KEEPALIVE_TIME_MS = 20_000;
// With the above, a silent peer is noticed before a default lease of 30 s ends.
const KEEPALIVE_TIMEOUT_MS = 5_000;

const REASON_TRAILER = "fila-reason";
const REDACTED = "[redacted]";

type Decode<R> = (bytes: Buffer) => R;

/** One unary call that is ready to be sent, and how to read its answer. */
export interface Call<T> extends Subject {
  readonly method: string;
  readonly request: Buffer;
  readonly decode: Decode<T>;
  /** Whether doing it twice is harmless. */
  readonly isRepeatable?: boolean;
}

/** How one request travels. */
export interface Sending {
  readonly timeoutMs: number;
  readonly trace: TraceContext;
  readonly signal?: AbortSignal | undefined;
}

/** What a call is let in with. */
export interface Pass {
  readonly apiKey: string | undefined;
}

/** A broker's address with everything that calls to it have in common. */
export class Connection {
  readonly backoff: Backoff;
  readonly timeoutMs: number;
  readonly messageBytesMax: number;
  /** False once the broker has said that it knows no grants. */
  hasGrants = true;
  readonly #route: Route;
  // The pass of every call, if there is only one; else the latest, and who gives the next key.
  #pass: Pass;
  readonly #askForKey: (() => string | Promise<string>) | null;
  // What is cut off in the end: calls under way, and waits before the next attempt.
  readonly #pending = new Set<() => void>();
  #isClosed = false;
  #isCut = false;

  constructor(target: string | readonly string[], options: ClientOptions) {
    this.timeoutMs = checkedTimeoutMs(options.timeoutMs ?? DEFAULT_TIMEOUT_MS);
    this.messageBytesMax = options.maxMessageBytes ?? DEFAULT_MESSAGE_BYTES_MAX;
    this.backoff = new Backoff(options.backoff);
    const { apiKey } = options;
    this.#askForKey = typeof apiKey === "function" ? apiKey : null;
    const isFixed = apiKey !== undefined && typeof apiKey !== "function";
    this.#pass = { apiKey: isFixed ? checkedApiKey(apiKey) : undefined };
    this.#route = new Route(
      addressesOf(target),
      options,
      grpcOptions(options, this.backoff),
      this.backoff,
      this.timeoutMs,
      (text) => this.redacted(text, this.#pass),
    );
  }

  /** What calls of users begin with. */
  checkOpen(): void {
    if (this.#isClosed) throw new ClientClosedError();
  }

  /** What requests begin with: those that were promised go out while the client closes. */
  checkUncut(): void {
    if (this.#isCut) throw new ClientClosedError();
  }

  /** A call's deadline: its own, or the client's. */
  milliseconds(timeoutMs: number | undefined): number {
    return timeoutMs === undefined ? this.timeoutMs : boundedMs(timeoutMs);
  }

  /** Sends one call and reads its answer; again if the broker is away and it is safe. */
  async call<T>(call: Call<T>, options: CallOptions): Promise<T> {
    this.checkOpen();
    const trace = currentTrace();
    const { signal } = options;
    try {
      return await this.retrying(
        (timeoutMs) =>
          this.send(call.method, call.request, call.decode, { timeoutMs, trace, signal }),
        call.isRepeatable === true,
        options,
      );
    } catch (error) {
      if (!(error instanceof FilaError)) throw error;
      throw about(error, { queue: call.queue, messageId: call.messageId });
    }
  }

  /** Sends one encoded request and waits for the answer. */
  async send<R>(
    method: string,
    request: Buffer,
    decode: Decode<R>,
    { timeoutMs, trace, signal }: Sending,
  ): Promise<R> {
    this.checkUncut();
    signal?.throwIfAborted();
    // gRPC sends such a request, and with luck gets an answer.
    if (timeoutMs <= 0) throw tooLate("the deadline passed before the request was sent");
    const options = { deadline: Date.now() + timeoutMs };
    const asked = this.pass();
    const pass = asked instanceof Promise ? await this.within(asked, timeoutMs, signal) : asked;
    const metadata = metadataOf(pass, trace);
    return await new Promise<R>((resolve, reject) => {
      const call = this.#route.grpc.makeUnaryRequest(
        method,
        same,
        decode,
        request,
        metadata,
        options,
        (error, response) => {
          forget();
          this.#pending.delete(cancel);
          if (error === null) resolve(response as R);
          else if (signal?.aborted) reject(signal.reason as Error);
          else reject(this.failure(error, {}, pass));
        },
      );
      const cancel = (): void => {
        call.cancel();
      };
      const forget = onAbort(signal, cancel);
      this.#pending.add(cancel);
    });
  }

  /**
   * What the next call is let in with. It may take a moment to find a broker, or the key. What the
   * one who gives the key throws is UNAUTHENTICATED with its cause, unless it is an error of ours.
   */
  pass(): Pass | Promise<Pass> {
    const decision = this.#route.decision();
    if (decision !== null) return decision.then(() => this.#passNow());
    return this.#passNow();
  }

  #passNow(): Pass | Promise<Pass> {
    if (this.#askForKey === null) return this.#pass;
    try {
      const asked = this.#askForKey();
      if (typeof asked === "string") return this.#keyed(asked);
      // Anybody's promise will do; what is none is looked at as a key.
      return Promise.resolve(asked).then(
        (key) => this.#keyed(key),
        (error: unknown) => {
          throw withoutKey(error);
        },
      );
    } catch (error) {
      throw withoutKey(error);
    }
  }

  #keyed(apiKey: string): Pass {
    const isKnown = apiKey !== undefined && apiKey === this.#pass.apiKey;
    if (isKnown) return this.#pass;
    try {
      this.#pass = { apiKey: checkedApiKey(apiKey) };
    } catch (error) {
      throw withoutKey(error);
    }
    return this.#pass;
  }

  /** The pass, unless the deadline or an abort is first. */
  within(asked: Promise<Pass>, timeoutMs: number, signal?: AbortSignal): Promise<Pass> {
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        clearTimeout(timer);
        forget();
        uncut();
      };
      const fail = (error: unknown): void => {
        leave();
        reject(error);
      };
      const timer = setTimeout(() => {
        fail(tooLate("no broker was found, or no API key came, in time; this was not sent"));
      }, timeoutMs);
      const forget = onAbort(signal, () => {
        fail(signal?.reason);
      });
      const uncut = this.onCut(() => {
        fail(new ClientClosedError());
      });
      asked.then((pass) => {
        leave();
        resolve(pass);
      }, fail);
    });
  }

  /** Opens a stream of answers, with no deadline. */
  stream<R>(
    pass: Pass,
    method: string,
    request: Buffer,
    decode: Decode<R>,
    subject: Subject,
    waitForReady: boolean,
    reader: Reader<R>,
  ): FrameStream<R> {
    this.checkUncut();
    const metadata = metadataOf(pass, currentTrace());
    metadata.setOptions({ waitForReady });
    const { grpc } = this.#route;
    const call = grpc.makeServerStreamRequest(method, same, same, request, metadata, {});
    return new FrameStream(call, decode, (ended) => this.failure(ended, subject, pass), reader);
  }

  /** Opens a stream in both directions, with no deadline. */
  duplex(pass: Pass, method: string): ClientDuplexStream<Buffer, Buffer> {
    this.checkUncut();
    const metadata = metadataOf(pass, undefined);
    return this.#route.grpc.makeBidiStreamRequest(method, same, same, metadata, {});
  }

  /** Whether there is a connection to the broker now. */
  get isConnected(): boolean {
    return this.#route.isConnected;
  }

  /** Calls `act` when all is cut off. Returns what ends the wait; harmless twice. */
  onCut(act: () => void): () => void {
    this.#pending.add(act);
    return () => this.#pending.delete(act);
  }

  /** Calls `send` with the time that remains; again if the broker is away and it is safe. */
  async retrying<T>(
    send: (remainingMs: number) => Promise<T>,
    isRepeatable: boolean,
    { timeoutMs, signal }: CallOptions,
  ): Promise<T> {
    const deadline = performance.now() + this.milliseconds(timeoutMs);
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await send(deadline - performance.now());
      } catch (error) {
        const delayMs = this.backoff.delayMs(attempt, Math.random());
        const isInTime = performance.now() + delayMs < deadline;
        if (!isRepeatable || !isInTime || !(error instanceof UnavailableError)) throw error;
        await this.pause(delayMs, signal);
      }
    }
  }

  /** Waits; less when all is cut off. Rejects with the signal's reason when that is first. */
  async pause(ms: number, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    await new Promise<void>((resolve, reject) => {
      const end = (): void => {
        clearTimeout(timer);
        forget();
        this.#pending.delete(end);
        if (signal?.aborted) reject(signal.reason as Error);
        else resolve();
      };
      const timer = setTimeout(end, ms);
      const forget = onAbort(signal, end);
      this.#pending.add(end);
    });
  }

  /** What a failed call means. Its cause is kept, unless the peer's text holds the API key. */
  failure(ended: StatusObject, subject: Subject, pass: Pass): FilaError {
    if (this.#isCut) return new ClientClosedError("", subject);
    const text = this.redacted(ended.details, pass);
    if (ended.code === status.UNAVAILABLE) this.#route.noted(text);
    const isSecret = text !== ended.details;
    const reason = ended.metadata.get(REASON_TRAILER)[0]?.toString() ?? null;
    const cause = isSecret || !(ended instanceof Error) ? undefined : ended;
    return fromStatus(status[ended.code], reason, text, subject, cause);
  }

  /** A peer's text without the API key. */
  redacted(text: string, { apiKey }: Pass): string {
    return apiKey === undefined ? text : text.replaceAll(apiKey, REDACTED);
  }

  /** Refuses further calls; those under way, and what they still have to send, go on. */
  refuse(): void {
    this.#isClosed = true;
  }

  /** Ends the connection and all that is under way. */
  close(): void {
    this.refuse();
    this.#isCut = true;
    for (const end of [...this.#pending]) end();
    this.#route.close();
  }
}

/** What a call fails with that has no key, because whoever gives it failed. */
function withoutKey(error: unknown): FilaError {
  if (error instanceof FilaError) return error;
  const text = `the function that gives the apiKey failed: ${String(error)}`;
  return new UnauthenticatedError(text, { code: "UNAUTHENTICATED", cause: error });
}

function metadataOf({ apiKey }: Pass, trace: TraceContext): Metadata {
  const metadata = new Metadata();
  if (apiKey !== undefined) metadata.set("authorization", `Bearer ${apiKey}`);
  for (const key in trace) metadata.set(key, trace[key] as string);
  return metadata;
}

/** The error of a deadline that this side has noticed. */
export function tooLate(text: string, subject: Subject = {}): DeadlineExceededError {
  return new DeadlineExceededError(text, { code: "DEADLINE_EXCEEDED", ...subject });
}

// Requests and answers are bytes here already.
function same(bytes: Buffer): Buffer {
  return bytes;
}

/** The settings of every channel. */
export function grpcOptions(options: ClientOptions, backoff: Backoff): GrpcOptions {
  const messageBytesMax = options.maxMessageBytes ?? DEFAULT_MESSAGE_BYTES_MAX;
  const found: GrpcOptions = {
    "grpc.primary_user_agent": `fila-js/${VERSION}`,
    "grpc.max_send_message_length": messageBytesMax,
    "grpc.max_receive_message_length": messageBytesMax,
    "grpc.keepalive_time_ms": KEEPALIVE_TIME_MS,
    "grpc.keepalive_timeout_ms": KEEPALIVE_TIMEOUT_MS,
    "grpc.keepalive_permit_without_calls": 1,
    // What is sent again is decided in this package, which knows what may be.
    "grpc.enable_retries": 0,
    // Nobody has put settings for this service into DNS; looking for them delays the first call.
    "grpc.service_config_disable_resolution": 1,
    // A connection of its own, so that closing a client closes it and its backoff is its own.
    "grpc.use_local_subchannel_pool": 1,
    "grpc.enable_channelz": 0,
    // A connection lasts until it is closed or lost; there is nothing else that ends it.
    "grpc.client_idle_timeout_ms": TIMER_MS_MAX,
    "grpc.initial_reconnect_backoff_ms": backoff.initialMs,
    "grpc.max_reconnect_backoff_ms": backoff.maximumMs,
  };
  if (options.interceptors !== undefined) found.interceptors = [...options.interceptors];
  const serverName = options.tls?.serverName;
  if (serverName !== undefined) found["grpc.ssl_target_name_override"] = serverName;
  return found;
}

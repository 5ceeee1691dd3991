// SPDX-License-Identifier: AGPL-3.0-only
// What a user may choose about a connection or a call, and how it is checked. Of gRPC it knows what
// an interceptor is.

import type { Interceptor } from "@grpc/grpc-js";

/** Options of every call. */
export interface CallOptions {
  /** The call's deadline in milliseconds, instead of the client's. */
  readonly timeoutMs?: number | undefined;
  /** Gives the call up: it rejects with the signal's reason, by default an `AbortError`. */
  readonly signal?: AbortSignal | undefined;
}

/**
 * Encrypts the connection; with a certificate and its key the client proves itself too (mTLS). Each
 * of them is PEM, or the path of a PEM file. Files are read again after a connection was lost or
 * could not be made, so that a certificate is rotated by replacing them.
 */
export interface TlsOptions {
  /** Whom to trust. Without it, the roots that Node.js trusts. */
  readonly ca?: string | Uint8Array | undefined;
  readonly cert?: string | Uint8Array | undefined;
  readonly key?: string | Uint8Array | undefined;
  /** The name to expect in the broker's certificate if it is not the target's host. */
  readonly serverName?: string | undefined;
}

/** A change of the connection. */
export interface ConnectionEvent {
  /** `unreachable`: at none of the addresses, since the client is used or the last one was lost. */
  readonly kind: "connected" | "lost" | "unreachable";
  /** The broker's; when it is unreachable, all that were tried. */
  readonly address: string;
  /** Why it is lost, as far as that is known, or unreachable; else empty. */
  readonly reason: string;
  /** When it is there again, or at last: for how long it was not. Else null. */
  readonly awayMs: number | null;
}

/**
 * How long to wait between attempts. The ceiling starts at `initialMs` and doubles up to
 * `maximumMs`; each wait is a random part of it, so that the clients of a broker that restarts do
 * not all come back in the same instant.
 */
export interface BackoffOptions {
  /** 100 unless told otherwise. */
  readonly initialMs?: number | undefined;
  /** 5,000 unless told otherwise. */
  readonly maximumMs?: number | undefined;
}

/** Options of a client. */
export interface ClientOptions {
  /** Encrypts the connection; `{}` trusts the roots that Node.js trusts. */
  readonly tls?: TlsOptions | undefined;
  /**
   * Sent with every call. A function is asked for each call and each opening of a stream, so it
   * keeps what is slow to get. What it throws fails that call: UNAUTHENTICATED, with it as the
   * cause.
   */
  readonly apiKey?: string | (() => string | Promise<string>) | undefined;
  /** The deadline of every request, 5,000 unless told otherwise. Streams have none. */
  readonly timeoutMs?: number | undefined;
  /** The largest request and the largest answer, 64 MiB unless told otherwise. */
  readonly maxMessageBytes?: number | undefined;
  readonly backoff?: BackoffOptions | undefined;
  /**
   * How many bytes of messages calls of `enqueue` may hold together, 32 MiB unless told otherwise.
   * Beyond it a call waits, within its own deadline.
   */
  readonly maxBufferedBytes?: number | undefined;
  /** Called when the connection changes. What it throws is logged and changes nothing. */
  readonly onConnection?: ((event: ConnectionEvent) => unknown) | undefined;
  /** Interceptors of gRPC for every call and stream. */
  readonly interceptors?: readonly Interceptor[] | undefined;
  /** How long `close` lets calls be answered that were begun before, 5,000 ms by default. */
  readonly closeTimeoutMs?: number | undefined;
}

/** How a consumer wants its messages. */
export interface ConsumeOptions {
  /** The most messages leased to the consumer at a time, 64 unless told otherwise. */
  readonly maxInFlight?: number | undefined;
  /** The most messages that arrive together, 32 unless told otherwise. */
  readonly batchSize?: number | undefined;
  /** How long each lease lasts, instead of the queue's visibility timeout. */
  readonly visibilityTimeoutMs?: number | undefined;
  /**
   * Whether leases of messages that wait here to be handed out are extended; true unless told
   * otherwise. Those that were handed out are the application's own: `message.extend()`.
   */
  readonly extendLeases?: boolean | undefined;
  /** Ends the consumer: what it has not handed out goes back, and the iteration throws. */
  readonly signal?: AbortSignal | undefined;
}

export const DEFAULT_TARGET = "127.0.0.1:5555";
export const DEFAULT_TIMEOUT_MS = 5_000;
// The broker keeps single payloads below 4 MiB; frames and pages hold many of them.
export const DEFAULT_MESSAGE_BYTES_MAX = 64 * 1024 * 1024;
export const DEFAULT_BUFFERED_BYTES_MAX = 32 * 1024 * 1024;
export const DEFAULT_CLOSE_TIMEOUT_MS = 5_000;

// Doubling stops long before this; the bound keeps the power small after hours of trying.
const DOUBLINGS_MAX = 30;
// Timers of Node.js fire at once when told to wait longer than this, which is 24 days.
export const TIMER_MS_MAX = 2 ** 31 - 1;

const SCHEME = /^(dns|ipv4|ipv6|unix):/;
const ADDRESS = /^(?:\[[0-9A-Fa-f:.]+\]|[^:/[\]]+):(\d{1,5})$/;

/** The waits between attempts. */
export class Backoff {
  readonly initialMs: number;
  readonly maximumMs: number;

  constructor({ initialMs = 100, maximumMs = 5_000 }: BackoffOptions = {}) {
    if (!(initialMs > 0 && initialMs <= maximumMs && maximumMs <= TIMER_MS_MAX)) {
      throw new RangeError(
        `backoff needs 0 < initialMs <= maximumMs, got ${initialMs} and ${maximumMs}`,
      );
    }
    this.initialMs = initialMs;
    this.maximumMs = maximumMs;
  }

  /** The wait before retry number `attempt`, counted from 0; `chance` is from 0 to 1. */
  delayMs(attempt: number, chance: number): number {
    const doublings = Math.min(attempt, DOUBLINGS_MAX);
    return chance * Math.min(this.maximumMs, this.initialMs * 2 ** doublings);
  }
}

/**
 * The addresses of a target, which are separated by commas, or a RangeError: without a port gRPC
 * would take 443, and a URL for a name.
 */
export function addressesOf(target: string | readonly string[]): string[] {
  const given = typeof target === "string" ? target.split(",") : target;
  if (!Array.isArray(given)) {
    throw new TypeError(`target must be a string or a list of them, not ${typeof target}`);
  }
  if (given.length === 0) throw new RangeError("target names no address");
  return given.map(checkedAddress);
}

function checkedAddress(given: unknown): string {
  if (typeof given !== "string") {
    throw new TypeError(`an address of target must be a string, not ${typeof given}`);
  }
  const address = given.trim();
  if (SCHEME.test(address)) return address;
  const port = Number(ADDRESS.exec(address)?.[1] ?? 0);
  if (port < 1 || port > 65_535) {
    throw new RangeError(`target "${address}" is not host:port, for example "${DEFAULT_TARGET}"`);
  }
  return address;
}

/** The key, or a TypeError. gRPC refuses other characters too, with a text that repeats them. */
export function checkedApiKey(apiKey: string): string {
  if (typeof apiKey !== "string" || !/^[!-~]+$/.test(apiKey)) {
    throw new TypeError("apiKey must be printable ASCII without spaces, and not empty");
  }
  return apiKey;
}

/** A client's timeout, which must be positive; a call's may have passed already. */
export function checkedTimeoutMs(timeoutMs: number): number {
  if (!(timeoutMs > 0)) throw new RangeError(`timeoutMs must be positive, got ${timeoutMs}`);
  return boundedMs(timeoutMs);
}

/** A bound on bytes, or a RangeError. */
export function checkedBytes(name: string, bytes: number): number {
  if (!(bytes > 0)) throw new RangeError(`${name} must be positive, got ${bytes}`);
  return bytes;
}

/** A time that may be 0, or a RangeError. */
export function checkedMs(name: string, ms: number): number {
  if (!(ms >= 0)) throw new RangeError(`${name} must not be negative, got ${ms}`);
  return Math.min(ms, TIMER_MS_MAX);
}

/** A time in milliseconds as timers can take it. */
export function boundedMs(ms: number): number {
  if (typeof ms !== "number" || Number.isNaN(ms)) {
    throw new TypeError(`timeoutMs must be a number, got ${ms}`);
  }
  return Math.min(ms, TIMER_MS_MAX);
}

// SPDX-License-Identifier: AGPL-3.0-only
// Which broker calls go to, and what becomes of the connection. Knows nothing of calls.
//
//     unused --> connected --> lost --> connected           one address: gRPC connects again itself
//        |                      |
//        '----------------------'--> unreachable --> connected
//
// gRPC keeps one address and one set of certificates for as long as a channel lives. So there is
// another channel where the files have changed after a connection was lost or could not be made,
// and, of several addresses, one after the other: the first that answers is used, and after its
// loss they are tried again from the first. Each is held to its own name like that.

import { Client as GrpcClient, Metadata, connectivityState, credentials } from "@grpc/grpc-js";
import type { ClientOptions as GrpcOptions } from "@grpc/grpc-js";

import { wordsOf } from "./errors.js";
import { CHECK } from "./health.js";
import { warn } from "./log.js";
import type { Backoff, ClientOptions, ConnectionEvent } from "./options.js";
import { Tls } from "./tls.js";

const { READY, TRANSIENT_FAILURE } = connectivityState;

/** Waits of calls until an address is chosen. */
interface Decision {
  readonly made: Promise<void>;
  readonly make: () => void;
}

export class Route {
  readonly #addresses: readonly string[];
  readonly #tls: Tls | null;
  readonly #grpcOptions: GrpcOptions;
  readonly #backoff: Backoff;
  readonly #attemptMs: number;
  readonly #onEvent: ClientOptions["onConnection"];
  readonly #redacted: (text: string) => string;
  #position = 0;
  #grpc: GrpcClient;
  #state: "unused" | ConnectionEvent["kind"] = "unused";
  #awaySince = 0;
  // The latest failure of a call since the connection was lost.
  #reason = "";
  #decision: Decision | null = null;
  #failures = 0;
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(
    addresses: readonly string[],
    options: ClientOptions,
    grpcOptions: GrpcOptions,
    backoff: Backoff,
    timeoutMs: number,
    redacted: (text: string) => string,
  ) {
    this.#addresses = addresses;
    this.#tls = options.tls === undefined ? null : new Tls(options.tls);
    this.#grpcOptions = grpcOptions;
    this.#backoff = backoff;
    // A call's deadline sees all addresses, also where one of them swallows everything.
    this.#attemptMs = timeoutMs / addresses.length;
    this.#onEvent = options.onConnection;
    this.#redacted = redacted;
    this.#grpc = this.#open();
  }

  /** What calls are made with now. */
  get grpc(): GrpcClient {
    return this.#grpc;
  }

  get isConnected(): boolean {
    return this.#grpc.getChannel().getConnectivityState(false) === READY;
  }

  /** Null when calls may be begun; else what they have to wait for. Never rejects. */
  decision(): Promise<void> | null {
    if (this.#addresses.length === 1) return null;
    if (this.#state === "unused" || this.#state === "lost") this.#decide();
    return this.#decision?.made ?? null;
  }

  /** A call has failed because there is no connection. */
  noted(reason: string): void {
    this.#reason = reason;
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#grpc.close();
    this.#decision?.make();
  }

  get #address(): string {
    return this.#addresses[this.#position] as string;
  }

  #open(): GrpcClient {
    const trust = this.#tls?.credentials ?? credentials.createInsecure();
    const grpc = new GrpcClient(this.#address, trust, this.#grpcOptions);
    this.#watch(grpc);
    return grpc;
  }

  #watch(grpc: GrpcClient): void {
    const channel = grpc.getChannel();
    const before = channel.getConnectivityState(false);
    channel.watchConnectivityState(before, Infinity, () => {
      if (this.#isClosed || grpc !== this.#grpc) return;
      const now = channel.getConnectivityState(false);
      if (before === READY && now !== READY) this.#lost();
      if (now === READY) this.#connected();
      if (now === TRANSIENT_FAILURE && grpc === this.#grpc) this.#failed(grpc);
      if (grpc === this.#grpc) this.#watch(grpc);
    });
  }

  /** Makes another channel, to the address whose turn it is and with what the files hold. */
  #replace(): void {
    const old = this.#grpc;
    this.#grpc = this.#open();
    // It may be telling of its state just now.
    setImmediate(() => {
      old.close();
    });
  }

  // --- Choosing an address -----------------------------------------------------------------------

  #decide(): void {
    if (this.#decision !== null || this.#isClosed) return;
    let make = (): void => undefined;
    const made = new Promise<void>((resolve) => {
      make = resolve;
    });
    this.#decision = { made, make };
    this.#attempt();
  }

  #decided(): void {
    this.#decision?.make();
    this.#decision = null;
  }

  #attempt(): void {
    const grpc = this.#grpc;
    grpc.getChannel().getConnectivityState(true);
    if (this.#addresses.length === 1) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#failed(grpc);
    }, this.#attemptMs).unref();
  }

  #failed(grpc: GrpcClient): void {
    if (this.#position + 1 < this.#addresses.length) {
      this.#position += 1;
      this.#tls?.refresh();
      this.#replace();
      this.#attempt();
      return;
    }
    if (this.#state !== "unreachable") this.#unreachable(grpc);
    this.#decided();
    // gRPC tries again on its own, but only the same.
    if (this.#addresses.length > 1 || this.#tls !== null) this.#tryLater();
  }

  #tryLater(): void {
    clearTimeout(this.#timer);
    const delayMs = this.#backoff.delayMs(this.#failures, Math.random());
    this.#failures += 1;
    this.#timer = setTimeout(() => {
      if (this.#state !== "unreachable") return;
      const isRotated = this.#tls?.refresh() === true;
      if (this.#addresses.length > 1) {
        this.#position = 0;
        this.#replace();
        this.#decide();
        return;
      }
      if (isRotated) {
        this.#replace();
        this.#attempt();
      }
      this.#tryLater();
    }, delayMs).unref();
  }

  // --- What becomes of the connection ------------------------------------------------------------

  #connected(): void {
    clearTimeout(this.#timer);
    this.#failures = 0;
    const wasAway = this.#state !== "unused";
    this.#state = "connected";
    this.#decided();
    const awayMs = wasAway ? performance.now() - this.#awaySince : null;
    const address = this.#address;
    if (awayMs !== null) {
      const seconds = (awayMs / 1_000).toFixed(1);
      warn("FILA_CONNECTED", `connected to ${address}, after ${seconds} s without a connection`);
    }
    this.#tell({ kind: "connected", address, reason: "", awayMs });
  }

  #lost(): void {
    const address = this.#address;
    this.#state = "lost";
    this.#awaySince = performance.now();
    this.#reason = "";
    // Those whose calls were cut off hear of it in this turn of the event loop, and know why.
    setImmediate(() => {
      if (this.#isClosed) return;
      const reason = this.#reason;
      const why = reason === "" ? "" : `: ${reason}`;
      warn("FILA_CONNECTION_LOST", `the connection to ${address} is lost${why}`);
      this.#tell({ kind: "lost", address, reason, awayMs: null });
    });
    const isRotated = this.#tls?.refresh() === true;
    if (this.#addresses.length === 1 && !isRotated) return;
    this.#position = 0;
    this.#replace();
  }

  #unreachable(grpc: GrpcClient): void {
    if (this.#state === "unused") this.#awaySince = performance.now();
    this.#state = "unreachable";
    const address = this.#addresses.join(",");
    // A channel does not say why it failed, but a call through it does, and fails at once.
    const { method, request } = CHECK;
    const same = (bytes: Buffer): Buffer => bytes;
    const options = { deadline: Date.now() + this.#attemptMs };
    grpc.makeUnaryRequest(method, same, same, request, new Metadata(), options, (error) => {
      if (this.#isClosed || this.#state !== "unreachable" || error === null) return;
      const reason = this.#redacted(error.details);
      warn("FILA_UNREACHABLE", `no broker can be reached at ${address}, trying again: ${reason}`);
      this.#tell({ kind: "unreachable", address, reason, awayMs: null });
    });
  }

  #tell(event: ConnectionEvent): void {
    if (this.#onEvent === undefined) return;
    const failed = (cause: unknown): void => {
      warn("FILA_EVENT_HANDLER_FAILED", `onConnection failed: ${wordsOf(cause)}`);
    };
    try {
      const told = this.#onEvent(event);
      if (told instanceof Promise) told.catch(failed);
    } catch (cause) {
      failed(cause);
    }
  }
}

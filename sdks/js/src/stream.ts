// SPDX-License-Identifier: AGPL-3.0-only
// A stream of answers that is read one frame at a time, on demand.
//
// gRPC's own stream for Node.js reads sixteen frames ahead, and tells the peer that they were
// taken. Then the broker's credit would not see how fast the application is, and frames that nobody
// has seen would be lost with the stream. So this one drives the call itself: a frame is asked for
// only when somebody waits for it.

import { status } from "@grpc/grpc-js";
import type { ChannelInterface, Metadata, StatusObject } from "@grpc/grpc-js";

import { InternalError } from "./errors.js";
import type { FilaError } from "./errors.js";

type GrpcCall = ReturnType<ChannelInterface["createCall"]>;

interface Reader<R> {
  readonly resolve: (frame: R | null) => void;
  readonly reject: (error: unknown) => void;
}

export class FrameStream<R> {
  readonly #call: GrpcCall;
  readonly #decode: (bytes: Buffer) => R;
  readonly #failure: (ended: StatusObject) => FilaError;
  #reader: Reader<R> | null = null;
  #ended: StatusObject | null = null;

  constructor(
    call: GrpcCall,
    metadata: Metadata,
    request: Buffer,
    decode: (bytes: Buffer) => R,
    failure: (ended: StatusObject) => FilaError,
  ) {
    this.#call = call;
    this.#decode = decode;
    this.#failure = failure;
    call.start(metadata, {
      onReceiveMetadata: () => undefined,
      onReceiveMessage: (bytes: Buffer) => {
        this.#received(bytes);
      },
      onReceiveStatus: (ended) => {
        this.#ended = ended;
        this.#finish();
      },
    });
    call.sendMessageWithContext({}, request);
    call.halfClose();
  }

  /** The next frame; null when the peer has ended the stream. One reader at a time. */
  read(): Promise<R | null> {
    return new Promise((resolve, reject) => {
      this.#reader = { resolve, reject };
      if (this.#ended === null) this.#call.startRead();
      else this.#finish();
    });
  }

  /** Ends the stream; a read under way fails. Harmless twice. */
  cancel(): void {
    this.#call.cancelWithStatus(status.CANCELLED, "cancelled by the client");
  }

  #received(bytes: Buffer): void {
    const reader = this.#take();
    try {
      reader?.resolve(this.#decode(bytes));
    } catch (cause) {
      this.cancel();
      const text = "the broker sent a frame that cannot be read";
      reader?.reject(new InternalError(text, { code: "INTERNAL", cause }));
    }
  }

  #finish(): void {
    const ended = this.#ended as StatusObject;
    const reader = this.#take();
    if (ended.code === status.OK) reader?.resolve(null);
    else reader?.reject(this.#failure(ended));
  }

  #take(): Reader<R> | null {
    const reader = this.#reader;
    this.#reader = null;
    return reader;
  }
}

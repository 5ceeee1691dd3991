// SPDX-License-Identifier: AGPL-3.0-only
// A stream of answers, read as they come. What bounds them is the credit that the peer has, so
// nothing here holds anything back.

import { status } from "@grpc/grpc-js";
import type { ClientReadableStream, StatusObject } from "@grpc/grpc-js";

import { InternalError } from "./errors.js";
import type { FilaError } from "./errors.js";

/** Who reads a stream. */
export interface Reader<R> {
  /** The peer has let the stream in. */
  opened(): void;
  received(frame: R): void;
  /** The last call; null where the peer ended the stream without an error. */
  ended(failure: FilaError | null): void;
}

export class FrameStream<R> {
  readonly #call: ClientReadableStream<Buffer>;
  #isOver = false;

  constructor(
    call: ClientReadableStream<Buffer>,
    decode: (bytes: Buffer) => R,
    failure: (ended: StatusObject) => FilaError,
    reader: Reader<R>,
  ) {
    this.#call = call;
    const end = (error: FilaError | null): void => {
      if (this.#isOver) return;
      this.#isOver = true;
      reader.ended(error);
    };
    call.on("metadata", () => {
      if (!this.#isOver) reader.opened();
    });
    call.on("data", (bytes: Buffer) => {
      if (this.#isOver) return;
      let frame: R;
      try {
        frame = decode(bytes);
      } catch (cause) {
        const text = "the broker sent a frame that cannot be read";
        end(new InternalError(text, { code: "INTERNAL", cause }));
        call.cancel();
        return;
      }
      reader.received(frame);
    });
    call.on("error", (error: Error & StatusObject) => {
      end(failure(error));
    });
    call.on("status", (ended: StatusObject) => {
      end(ended.code === status.OK ? null : failure(ended));
    });
  }

  /** Ends the stream; its reader hears nothing more. Harmless twice. */
  cancel(): void {
    this.#isOver = true;
    this.#call.cancel();
  }
}

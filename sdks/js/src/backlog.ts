// SPDX-License-Identifier: AGPL-3.0-only
// What a client has promised: calls that were begun and not answered. Flushing and closing wait for
// them, and those that hold messages are bounded in bytes: beyond that, calls wait before they are
// encoded, so that a producer that is faster than its broker does not fill the memory.

import { onAbort } from "./abort.js";

/** Calls that began between two moments at which somebody asked for their end. */
class Epoch {
  #calls = 0;
  #onEnd: (() => void) | null = null;

  get isEmpty(): boolean {
    return this.#calls === 0;
  }

  enter(): void {
    this.#calls += 1;
  }

  leave(): void {
    this.#calls -= 1;
    if (this.#calls === 0) this.#onEnd?.();
  }

  onEnd(act: () => void): void {
    this.#onEnd = act;
  }
}

export class Backlog {
  readonly #bytesMax: number;
  #bytes = 0;
  // Who waits for room, longest first.
  #waiting: (() => void)[] = [];
  #epoch = new Epoch();
  readonly #older = new Map<Epoch, Promise<void>>();

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** Runs a call. */
  async run<T>(call: () => Promise<T>): Promise<T> {
    const epoch = this.#epoch;
    epoch.enter();
    try {
      return await call();
    } finally {
      epoch.leave();
    }
  }

  get isFull(): boolean {
    return this.#bytes >= this.#bytesMax || this.#waiting.length > 0;
  }

  /** Waits for room, this long at most: false where there is none. */
  async room(ms: number, signal: AbortSignal | undefined): Promise<boolean> {
    let wake: () => void = () => undefined;
    const free = new Promise<void>((resolve) => {
      wake = resolve;
    });
    this.#waiting.push(wake);
    let isFree = false;
    try {
      isFree = await within(free, ms, signal);
    } finally {
      this.#waiting = this.#waiting.filter((other) => other !== wake);
      // Whoever leaves just when it was woken leaves its place to the next one.
      if (!isFree) this.#wake();
    }
    return isFree;
  }

  take(bytes: number): void {
    this.#bytes += bytes;
    this.#wake();
  }

  give(bytes: number): void {
    this.#bytes -= bytes;
    this.#wake();
  }

  // One at a time: how much it takes is known when it has encoded its message.
  #wake(): void {
    if (this.#bytes < this.#bytesMax) this.#waiting.shift()?.();
  }

  /** Waits for all calls that have begun, this long at most: whether all were answered. */
  answered(ms: number, signal?: AbortSignal): Promise<boolean> {
    const epoch = this.#epoch;
    if (!epoch.isEmpty) {
      this.#epoch = new Epoch();
      const ended = new Promise<void>((resolve) => {
        epoch.onEnd(resolve);
      });
      this.#older.set(
        epoch,
        ended.then(() => void this.#older.delete(epoch)),
      );
    }
    return within(Promise.all(this.#older.values()), ms, signal);
  }
}

/** Whether it happened in time. Rejects with the signal's reason when that is first. */
function within(
  event: Promise<unknown>,
  ms: number,
  signal: AbortSignal | undefined,
): Promise<boolean> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const timer = setTimeout(() => {
      forget();
      resolve(false);
    }, ms);
    const forget = onAbort(signal, () => {
      clearTimeout(timer);
      reject(signal?.reason);
    });
    void event.then(() => {
      clearTimeout(timer);
      forget();
      resolve(true);
    });
  });
}

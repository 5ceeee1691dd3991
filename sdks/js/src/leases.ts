// SPDX-License-Identifier: AGPL-3.0-only
// The leases of what a client holds: when they end, and that they are extended before.
//
// Messages that came together share a lease token, so a frame has one record here, one deadline,
// and one item of a request extends it. A lease's length is the difference of two times of the
// broker's, counted on this process's own monotonic clock, so clocks that differ do no harm.
//
//     arrived --half a lease--> due --extended--> due again ...      held by nobody: forgotten
//                                |
//                                '-- refused, or ended before the broker could be reached: lost
//
// One timer serves all frames of a client.

import { ClientClosedError, FilaError, UnimplementedError } from "./errors.js";
import type { Message as RawMessage } from "./gen/fila/v1/messages.js";
import { SETTLE, extendGrantItem } from "./grants.js";
import { debug } from "./log.js";
import { ConsumeMessage } from "./message.js";
import type { Settler } from "./message.js";
import { TIMER_MS_MAX } from "./options.js";
import type { Pipelines } from "./pipeline.js";
import { EXTEND, extendItem, join, outcomes, split } from "./wire.js";
import type { Batch, Item } from "./wire.js";

// What is due within this part of its lease goes along with what is due now: many frames that
// arrived one after the other need few requests.
const COMPANY_PART = 0.1;
// The next attempt after the broker could not be reached.
const RETRY_MS = 1_000;
const RETRY_PART = 0.1;

/** What came together, under one lease token. */
export class Frame {
  readonly queue: string;
  readonly leaseToken: string;
  readonly messages: readonly ConsumeMessage[];
  /** Infinite where the broker does not say when its lease ends. */
  readonly leaseMs: number;
  endsAt: number;
  /** Those whose leases are kept. */
  readonly held = new Set<ConsumeMessage>();
  /** True once the application has chosen an end for some of it: that must not be overruled. */
  hasOwnEnds = false;

  constructor(messages: readonly RawMessage[], settler: Settler) {
    this.messages = messages.map((raw) => new ConsumeMessage(raw, settler, this));
    this.queue = this.messages[0]?.queue ?? "";
    this.leaseToken = this.messages[0]?.leaseToken ?? "";
    const { leasedAt, leaseExpiresAt } = messages[0]?.timestamps ?? {};
    const leaseMs = Number(leaseExpiresAt) - Number(leasedAt);
    this.leaseMs = leaseMs > 0 ? leaseMs : Infinity;
    this.endsAt = performance.now() + this.leaseMs;
  }

  get size(): number {
    return this.messages.length;
  }

  /** Whether the message may be handed out: its lease lasts, as far as anybody here knows. */
  isGood(message: ConsumeMessage, now: number): boolean {
    return this.endsAt > now && this.held.has(message);
  }
}

/** A frame that is kept, and who wants to know what is lost of it. */
interface Keeping {
  readonly onLoss: (frame: Frame) => void;
  /** When it is extended; Infinity if never. */
  dueAt: number;
  /** From when on it may go along with others. */
  readyAt: number;
  isUnderWay: boolean;
}

/** One item of a request: a frame, or one message of it. */
interface Renewal extends Item {
  readonly frame: Frame;
  readonly message: ConsumeMessage | null;
}

export class Leases {
  readonly #pipelines: Pipelines;
  readonly #frames = new Map<Frame, Keeping>();
  #timer: NodeJS.Timeout | undefined;
  #wakesAt = Infinity;

  constructor(pipelines: Pipelines) {
    this.#pipelines = pipelines;
  }

  /** Holds all messages of a frame, and extends their leases if it is told to. */
  keep(frame: Frame, isExtended: boolean, onLoss: (frame: Frame) => void): void {
    for (const message of frame.messages) frame.held.add(message);
    if (frame.leaseMs === Infinity) return;
    const keeping = { onLoss, dueAt: Infinity, readyAt: Infinity, isUnderWay: false };
    if (isExtended) schedule(keeping, frame);
    this.#frames.set(frame, keeping);
    this.#wakeAt(Math.min(keeping.dueAt, frame.endsAt));
  }

  /** The message is somebody else's business now. */
  release(message: ConsumeMessage): void {
    const frame = ConsumeMessage.frameOf(message);
    if (frame?.held.delete(message) && frame.held.size === 0) this.#frames.delete(frame);
  }

  /** Forgets everything. */
  close(): void {
    this.#frames.clear();
    clearTimeout(this.#timer);
  }

  #wakeAt(time: number): void {
    if (time >= this.#wakesAt) return;
    this.#wakesAt = time;
    clearTimeout(this.#timer);
    const delayMs = Math.min(time - performance.now(), TIMER_MS_MAX);
    this.#timer = setTimeout(() => {
      this.#wake();
    }, delayMs);
    // Leases are kept for somebody who is there anyway.
    this.#timer.unref();
  }

  #wake(): void {
    this.#wakesAt = Infinity;
    const now = performance.now();
    const due: Frame[] = [];
    let next = Infinity;
    for (const [frame, keeping] of this.#frames) {
      if (frame.endsAt <= now) {
        this.#lose(frame);
      } else if (keeping.readyAt <= now && !keeping.isUnderWay) {
        keeping.isUnderWay = true;
        due.push(frame);
      } else {
        next = Math.min(next, keeping.isUnderWay ? Infinity : keeping.dueAt, frame.endsAt);
      }
    }
    if (due.length > 0) void this.#extend(due, now);
    this.#wakeAt(next);
  }

  #lose(frame: Frame): void {
    const keeping = this.#frames.get(frame);
    this.#frames.delete(frame);
    frame.held.clear();
    keeping?.onLoss(frame);
  }

  async #extend(frames: readonly Frame[], now: number): Promise<void> {
    const named: Frame[] = [];
    const whole: Renewal[] = [];
    for (const frame of frames) {
      // While the request is under way its lease may end.
      this.#wakeAt(frame.endsAt);
      if (frame.hasOwnEnds || !this.#pipelines.connection.hasGrants) named.push(frame);
      else whole.push(renewalOf(frame));
    }
    await Promise.all([
      this.#renew(SETTLE, whole, now, (settled) => settled.leaseExpiresAt),
      this.#renew(EXTEND, named.flatMap(renewalsOf), now, (end) => end),
    ]);
  }

  async #renew<T>(
    rpc: Batch<T>,
    renewals: readonly Renewal[],
    now: number,
    endOf: (outcome: T) => Date,
  ): Promise<void> {
    for (const part of split(renewals)) {
      try {
        const found = await this.#send(rpc, part);
        part.forEach((renewal, index) => {
          const outcome = found[index] as T | FilaError;
          if (outcome instanceof FilaError) this.#refused(renewal, outcome);
          else this.#renewed(renewal, now, endOf(outcome));
        });
      } catch (error) {
        this.#failed(rpc, part, error);
      }
    }
  }

  async #send<T>(rpc: Batch<T>, renewals: readonly Renewal[]): Promise<(T | FilaError)[]> {
    const { connection } = this.#pipelines;
    const endsAt = Math.min(...renewals.map(({ frame }) => frame.endsAt));
    // Half of what is left, so that there is time for another attempt.
    const timeoutMs = Math.min(connection.timeoutMs, (endsAt - performance.now()) / 2);
    const results = await this.#pipelines.send(rpc, join(renewals), {
      timeoutMs,
      trace: undefined,
    });
    return outcomes(rpc, results, renewals);
  }

  #renewed({ frame, message }: Renewal, sentAt: number, end: Date): void {
    for (const held of message === null ? frame.held : [message]) held.leaseExpiresAt = end;
    const keeping = this.#frames.get(frame);
    if (keeping === undefined) return;
    keeping.isUnderWay = false;
    frame.endsAt = sentAt + frame.leaseMs;
    schedule(keeping, frame);
    this.#wakeAt(keeping.dueAt);
  }

  #refused({ frame, message }: Renewal, error: FilaError): void {
    const keeping = this.#frames.get(frame);
    if (keeping === undefined) return;
    debug('a lease in queue "%s" was not extended: %s', frame.queue, error.message);
    if (message === null) {
      this.#lose(frame);
      return;
    }
    // Handed out meanwhile, or settled by a handler: that is no loss.
    if (!frame.held.has(message)) return;
    this.release(message);
    keeping.onLoss(frame);
  }

  #failed(rpc: Batch<unknown>, renewals: readonly Renewal[], error: unknown): void {
    if (error instanceof ClientClosedError) {
      this.close();
      return;
    }
    const isUnknown = error instanceof UnimplementedError && rpc === (SETTLE as Batch<unknown>);
    if (isUnknown) this.#pipelines.connection.hasGrants = false;
    else debug("leases were not extended: %s", error);
    const now = performance.now();
    for (const { frame } of renewals) {
      const keeping = this.#frames.get(frame);
      if (keeping === undefined) continue;
      const delayMs = isUnknown ? 0 : Math.min(RETRY_MS, frame.leaseMs * RETRY_PART);
      keeping.isUnderWay = false;
      keeping.dueAt = now + delayMs;
      keeping.readyAt = keeping.dueAt;
      this.#wakeAt(keeping.dueAt);
    }
  }
}

function schedule(keeping: Keeping, frame: Frame): void {
  keeping.dueAt = frame.endsAt - frame.leaseMs / 2;
  keeping.readyAt = keeping.dueAt - frame.leaseMs * COMPANY_PART;
}

function renewalOf(frame: Frame): Renewal {
  const item = extendGrantItem(frame.queue, frame.leaseToken, { ms: frame.leaseMs });
  return { ...item, frame, message: null };
}

function renewalsOf(frame: Frame): Renewal[] {
  return Array.from(frame.held, (message) => ({
    ...extendItem(message, frame.leaseMs),
    frame,
    message,
  }));
}

// SPDX-License-Identifier: AGPL-3.0-only
// Whole frames: what is acked together, and came together, travels as one settlement of a grant.
//
// A grant is what one delivery frame leases; its messages share a lease token. Acks of all of them
// are the same as one settlement that expects exactly so many. Where the broker refuses that, since
// some were settled before or their leases ended, each goes as an ack of its own and gets its own
// answer. So nobody can tell the two ways apart, but for what they cost.

import { UINT64_MAX, required, text, texts, whole } from "./arguments.js";
import { FilaError, LeaseExpiredError, UnimplementedError, about } from "./errors.js";
import { GrantSettlement, SettleGrantsResponse } from "./gen/fila/v1/service.js";
import type { NackOptions } from "./message.js";
import type { CallOptions } from "./options.js";
import { batch, element } from "./wire.js";
import type { Batch, Item } from "./wire.js";

/** How many messages were settled, and when extended leases end. */
export interface Settled {
  readonly messages: number;
  readonly leaseExpiresAt: Date;
}

export const SETTLE: Batch<Settled> = batch(
  "SettleGrants",
  "settle",
  SettleGrantsResponse,
  (result) => ({
    messages: result.messages,
    leaseExpiresAt: result.leaseExpiresAt ?? new Date(0),
  }),
);

/** Options of calls about a grant. */
export interface GrantOptions extends CallOptions {
  /** Messages that are left alone. */
  readonly exceptMessageIds?: readonly string[] | undefined;
}

/** Options of `nackGrant`. */
export interface NackGrantOptions extends GrantOptions, NackOptions {}

/** Options of `extendGrant`. */
export interface ExtendGrantOptions extends GrantOptions {
  /** The leases end this long from now, by default after the queue's visibility timeout. */
  readonly ms?: number | undefined;
}

type Action = Pick<GrantSettlement, "ack" | "nack" | "extend">;

export function ackGrantItem(queue: string, leaseToken: string, options: GrantOptions): Item {
  return settlement(queue, leaseToken, options, 0, action({ ack: {} }));
}

export function nackGrantItem(
  queue: string,
  leaseToken: string,
  error: string,
  options: NackGrantOptions,
): Item {
  const { retryAfterMs, throttleKey } = options;
  const nack = {
    error: text("error", error),
    retryAfterMs:
      retryAfterMs === undefined ? undefined : whole("retryAfterMs", retryAfterMs, UINT64_MAX),
    throttleKey: text("throttleKey", throttleKey),
    deadLetter: options.deadLetter ?? false,
  };
  return settlement(queue, leaseToken, options, 0, action({ nack }));
}

export function extendGrantItem(
  queue: string,
  leaseToken: string,
  options: ExtendGrantOptions,
): Item {
  const extend = { extendMs: whole("ms", options.ms, UINT64_MAX) };
  return settlement(queue, leaseToken, options, 0, action({ extend }));
}

function action(chosen: Partial<Action>): Action {
  return { ack: undefined, nack: undefined, extend: undefined, ...chosen };
}

function settlement(
  queue: string,
  leaseToken: string,
  { exceptMessageIds }: GrantOptions,
  expectedMessages: number,
  chosen: Action,
): Item {
  const request: GrantSettlement = {
    queue: required("queue", queue),
    leaseToken: required("leaseToken", leaseToken),
    exceptMessageIds: texts("exceptMessageIds", exceptMessageIds),
    expectedMessages,
    ...chosen,
  };
  return { data: element(GrantSettlement, request), queue: request.queue, isRepeatable: false };
}

/** What is remembered of a broker: true until it says that it knows no grants. */
export interface Peer {
  hasGrants: boolean;
}

/** Sends items as one request, or as several. Rejects with what a request failed with. */
export type Send = <T>(rpc: Batch<T>, items: readonly Item[]) => Promise<(T | FilaError)[]>;

/**
 * Sends acks, those of whole frames by their grants; null or an error for each, in order. They may
 * be sent again: once all is settled, that is refused as a whole, and then one by one.
 */
export async function ackFrames(
  peer: Peer,
  items: readonly Item[],
  ack: Batch<null>,
  settle: Send,
  send: Send = settle,
): Promise<(FilaError | null)[]> {
  const frames = peer.hasGrants ? wholeFrames(items) : [];
  if (frames.length === 0) return send(ack, items);
  const found = new Map<Item, FilaError | null>();
  try {
    const results = await settle(SETTLE, frames.map(frameItem));
    frames.forEach((frame, index) => {
      const result = results[index] as Settled | FilaError;
      if (result instanceof LeaseExpiredError) return;
      for (const item of frame) {
        const { queue, messageId } = item;
        found.set(item, result instanceof FilaError ? about(result, { queue, messageId }) : null);
      }
    });
  } catch (error) {
    if (!(error instanceof UnimplementedError)) throw error;
    peer.hasGrants = false;
  }
  const rest = items.filter((item) => !found.has(item));
  if (rest.length > 0) {
    const answers = await answersOf(rest, () => send(ack, rest));
    rest.forEach((item, index) => found.set(item, answers[index] as FilaError | null));
  }
  return items.map((item) => found.get(item) ?? null);
}

// Frames were settled before: what this request fails with is that of its own acks alone.
async function answersOf(
  rest: readonly Item[],
  send: () => Promise<(FilaError | null)[]>,
): Promise<(FilaError | null)[]> {
  try {
    return await send();
  } catch (error) {
    if (!(error instanceof FilaError)) throw error;
    return rest.map(({ queue, messageId }) => about(error, { queue, messageId }));
  }
}

/** The acks that make up whole frames, frame by frame. */
function wholeFrames(items: readonly Item[]): Item[][] {
  const frames = new Map<string, Item[]>();
  for (const item of items) {
    if ((item.frameSize ?? 0) < 2 || !item.leaseToken) continue;
    const key = `${item.leaseToken} ${item.queue}`;
    const frame = frames.get(key);
    if (frame === undefined) frames.set(key, [item]);
    else frame.push(item);
  }
  return [...frames.values()].filter((frame) => {
    const ids = new Set(frame.map((item) => item.messageId));
    return frame.length === frame[0]?.frameSize && ids.size === frame.length;
  });
}

/** The settlement that stands for the acks of a frame. */
function frameItem(frame: readonly Item[]): Item {
  const { queue, leaseToken = "" } = frame[0] as Item;
  const item = settlement(queue, leaseToken, {}, frame.length, action({ ack: {} }));
  return { ...item, isRepeatable: true };
}

// SPDX-License-Identifier: AGPL-3.0-only
// The hot path's requests and answers as bytes, and no I/O.
//
// Every batch request of the contract is one repeated field with the number 1, and on the wire a
// repeated field is its elements one after the other. So an item is encoded once, when its caller
// hands it in, and a batch is the items joined: the size of a batch is known exactly before it is
// sent, and one caller's bad argument is that caller's alone.

import { BinaryWriter } from "@bufbuild/protobuf/wire";

import { UINT32_MAX, UINT64_MAX, moment, required, text, texts, whole } from "./arguments.js";
import { InternalError, LeaseExpiredError, MessageNotFoundError, fromReason } from "./errors.js";
import type { ErrorClass, FilaError, Subject } from "./errors.js";
import { ErrorReason } from "./gen/fila/v1/messages.js";
import type { ItemError } from "./gen/fila/v1/messages.js";
import {
  AckBatchResponse,
  AckRequest,
  ConsumeRequest,
  EnqueueBatchResponse,
  EnqueueRequest,
  ExtendLeaseResponse,
  LeaseExtension,
  NackBatchResponse,
  NackRequest,
  ReceiveRequest,
} from "./gen/fila/v1/service.js";
import { EnqueueResult, frameSizeOf } from "./message.js";
import type { Delivery, EnqueueMessage, Headers, NackOptions, Payload } from "./message.js";
import type { ConsumeOptions } from "./options.js";
import { TRACEPARENT } from "./tracing.js";
import type { TraceContext } from "./tracing.js";

// A batch holds the broker's engine: a thousand messages for some 15 ms, which is as long as
// anybody else should have to wait behind them.
export const BATCH_ITEMS_MAX = 1_000;
// Below gRPC's customary 4 MiB, so that any broker takes it. A larger message travels alone.
export const BATCH_BYTES_MAX = 1024 * 1024;

const SERVICE = "/fila.v1.FilaService/";
export const CONSUME = SERVICE + "Consume";
export const RECEIVE = SERVICE + "Receive";
export const PIPELINE = SERVICE + "Pipeline";

const NO_BYTES = new Uint8Array(0);

/** How generated code reads and writes one type. */
export interface Codec<T> {
  encode(message: T, writer?: BinaryWriter): BinaryWriter;
  decode(input: Uint8Array): T;
}

/** One element of a batch: its bytes on the wire, and what an error about it should name. */
export interface Item extends Subject {
  readonly data: Uint8Array;
  readonly queue: string;
  /** Whether it may be sent again after a failure that leaves open if it was applied. */
  readonly isRepeatable: boolean;
  /** Of a delivery: its token, and how many messages came together with it. */
  readonly leaseToken?: string;
  readonly frameSize?: number;
}

interface ItemOutcome {
  readonly error?: ItemError | undefined;
}

/** What a batch is answered with: one result per item, in order. */
export type Results = readonly ItemOutcome[];

/** The calls of a pipeline, and their numbers there. */
const CALLS = { enqueue: 1, ack: 2, nack: 3, extend: 4, settle: 5 } as const;

/** An RPC that takes many items and answers each on its own. */
export interface Batch<T> {
  readonly method: string;
  readonly call: keyof typeof CALLS;
  readonly decode: (bytes: Uint8Array) => { readonly results: Results };
  readonly read: (result: ItemOutcome) => T;
  /** What a request that was sent again is answered with when the first one had succeeded. */
  readonly done: readonly ErrorClass[];
}

export function batch<R extends ItemOutcome, T>(
  method: string,
  call: keyof typeof CALLS,
  codec: Codec<{ results: R[] }>,
  read: (result: R) => T,
  done: readonly ErrorClass[] = [],
): Batch<T> {
  const decode = (bytes: Uint8Array) => codec.decode(bytes);
  return {
    method: SERVICE + method,
    ...{ call, decode, done },
    read: read as (result: ItemOutcome) => T,
  };
}

/**
 * The outcome of an item that was sent more than once. Its lease token makes that harmless: it ends
 * with the delivery, so a settlement that finds nothing has succeeded before.
 */
export function afterRepeat<T>(rpc: Batch<T>, outcome: T | FilaError): T | FilaError {
  return rpc.done.some((kind) => outcome instanceof kind) ? rpc.read({}) : outcome;
}

export const ENQUEUE: Batch<EnqueueResult> = batch(
  "EnqueueBatch",
  "enqueue",
  EnqueueBatchResponse,
  (result) => new EnqueueResult(result.messageId, result.duplicate),
);
export const ACK: Batch<null> = batch("AckBatch", "ack", AckBatchResponse, () => null, [
  MessageNotFoundError,
]);
// After a repeated ack LEASE_EXPIRED is an error: the message is still there.
export const NACK: Batch<null> = batch("NackBatch", "nack", NackBatchResponse, () => null, [
  MessageNotFoundError,
  LeaseExpiredError,
]);
export const EXTEND: Batch<Date> = batch(
  "ExtendLease",
  "extend",
  ExtendLeaseResponse,
  (result) => result.leaseExpiresAt ?? new Date(0),
);

/** One value or error per item, in order. */
export function outcomes<T>(
  rpc: Batch<T>,
  results: Results,
  items: readonly Item[],
): (T | FilaError)[] {
  if (results.length !== items.length) {
    const wrong = `the broker gave ${results.length} results for ${items.length} items`;
    return items.map(({ queue, messageId }) => new InternalError(wrong, { queue, messageId }));
  }
  return items.map((item, index) => {
    const result = results[index] as ItemOutcome;
    return result.error === undefined ? rpc.read(result) : refusal(result.error, item);
  });
}

/** The error that a refusal in an answer stands for. */
export function refusal(error: ItemError, { queue, messageId }: Subject): FilaError {
  // The name is missing where the broker is newer than this SDK.
  const reason = ErrorReason[error.reason] ?? String(error.reason);
  return fromReason(reason, error.message, { queue, messageId });
}

/** The items in order, in batches that stay within both limits; none for no items. */
export function* split<I extends Item>(items: Iterable<I>): Generator<I[]> {
  let found: I[] = [];
  let size = 0;
  for (const item of items) {
    const isFull = found.length === BATCH_ITEMS_MAX || size + item.data.length > BATCH_BYTES_MAX;
    if (found.length > 0 && isFull) {
      yield found;
      found = [];
      size = 0;
    }
    found.push(item);
    size += item.data.length;
  }
  if (found.length > 0) yield found;
}

/** The batch request that holds the items. */
export function join(items: readonly Item[]): Buffer {
  return Buffer.concat(items.map((item) => item.data));
}

/** A batch request as a pipeline carries it. */
export function envelope(rpc: Batch<unknown>, request: Buffer): Buffer {
  const tag = (CALLS[rpc.call] << 3) | 2; // Of a length-delimited field.
  const head = new BinaryWriter().uint32(tag).uint32(request.length).finish();
  return Buffer.concat([head, request]);
}

/** One request as bytes. */
export function encode<T>(codec: Codec<T>, request: T): Buffer {
  const bytes = codec.encode(request).finish();
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

// One writer for all items: a writer keeps its buffer, and getting a new one costs more than
// encoding a small message. It is dropped when that buffer has become large, and after a failure,
// which leaves half a message behind.
let idleWriter: BinaryWriter | null = null;

export function element<T>(codec: Codec<T>, request: T): Uint8Array {
  const writer = idleWriter ?? new BinaryWriter();
  idleWriter = null;
  writer.uint32(0x0a).fork(); // The tag of a length-delimited field 1.
  codec.encode(request, writer);
  const data = writer.join().finish();
  if (data.length < BATCH_BYTES_MAX) idleWriter = writer;
  return data;
}

// --- Enqueue -------------------------------------------------------------------------------------

/** Encodes one message. Throws a TypeError or RangeError that names the field at fault. */
export function enqueueItem(message: EnqueueMessage, trace: TraceContext): Item {
  const request: EnqueueRequest = {
    queue: required("queue", message.queue),
    headers: headersOf(message.headers, trace),
    payload: payloadOf(message.payload) as Buffer,
    fairnessKey: text("fairnessKey", message.fairnessKey),
    weight: whole("weight", message.weight, UINT32_MAX),
    throttleKeys: texts("throttleKeys", message.throttleKeys),
    throttleCost: whole("throttleCost", message.throttleCost, UINT32_MAX),
    delayMs: whole("delayMs", message.delayMs, UINT64_MAX),
    deliverAt: moment("deliverAt", message.deliverAt),
    ttlMs: whole("ttlMs", message.ttlMs, UINT64_MAX),
    idempotencyKey: text("idempotencyKey", message.idempotencyKey),
  };
  return {
    data: element(EnqueueRequest, request),
    queue: request.queue,
    isRepeatable: request.idempotencyKey !== "",
  };
}

function headersOf(headers: Headers | null | undefined, trace: TraceContext): Map<string, string> {
  const found = new Map<string, string>();
  if (headers !== undefined && headers !== null) {
    if (typeof headers !== "object") {
      throw new TypeError(`headers must be an object, not ${typeof headers}`);
    }
    for (const [key, value] of Object.entries(headers)) {
      found.set(text(`the key of header "${key}"`, key), required(`header "${key}"`, value));
    }
  }
  // A producer's own trace context wins: the message may continue a trace begun elsewhere.
  if (trace !== undefined && !found.has(TRACEPARENT)) {
    for (const [key, value] of Object.entries(trace)) found.set(key, value);
  }
  return found;
}

function payloadOf(payload: Payload | null | undefined): Uint8Array {
  if (payload === undefined || payload === null) return NO_BYTES;
  if (payload instanceof Uint8Array) return payload;
  if (typeof payload === "object") {
    const [form] = Object.keys(payload);
    if ("text" in payload && form === "text") return utf8(required("text", payload.text));
    if ("json" in payload && form === "json") return utf8(jsonOf(payload.json));
  }
  const given = typeof payload === "object" ? "another object" : `a ${typeof payload}`;
  throw new TypeError(`payload must be bytes, { text } or { json }, not ${given}`);
}

function utf8(words: string): Uint8Array {
  return Buffer.from(words, "utf8");
}

function jsonOf(value: unknown): string {
  const words = JSON.stringify(value) as string | undefined;
  if (words !== undefined) return words;
  throw new TypeError(`json cannot express a value of type ${typeof value}`);
}

// --- Consume and settle --------------------------------------------------------------------------

// What a handler that takes 0.4 s works off before a default lease of 30 s ends, even if nobody
// extends it. More would also make a quiet tenant's message wait behind more messages that were
// delivered before it, and leave less for a second worker.
const DEFAULT_IN_FLIGHT_MAX = 64;
// A frame costs the broker some 0.3 ms whatever it holds; these share that.
export const DEFAULT_BATCH_SIZE = 32;

export function consumeRequest(queue: string, options: ConsumeOptions): Buffer {
  return encode(ConsumeRequest, {
    queue: required("queue", queue),
    maxInFlight: whole("maxInFlight", options.maxInFlight ?? DEFAULT_IN_FLIGHT_MAX, UINT32_MAX),
    maxBatch: whole("batchSize", options.batchSize ?? DEFAULT_BATCH_SIZE, UINT32_MAX),
    visibilityTimeoutMs: whole(
      "visibilityTimeoutMs",
      options.visibilityTimeoutMs,
      UINT64_MAX,
    ),
  });
}

export function receiveRequest(
  queue: string,
  maxMessages: number | undefined,
  waitMs: number | undefined,
  visibilityTimeoutMs: number | undefined,
): Buffer {
  return encode(ReceiveRequest, {
    queue: required("queue", queue),
    maxMessages: whole("maxMessages", maxMessages ?? 1, UINT32_MAX),
    waitMs: whole("waitMs", waitMs, UINT64_MAX),
    visibilityTimeoutMs: whole("visibilityTimeoutMs", visibilityTimeoutMs, UINT64_MAX),
  });
}

export function ackItem(delivery: Delivery): Item {
  return deliveryItem(delivery, AckRequest, {});
}

export function nackItem(delivery: Delivery, error: string, options: NackOptions): Item {
  const { retryAfterMs, throttleKey } = options;
  return deliveryItem(delivery, NackRequest, {
    error: text("error", error),
    retryAfterMs:
      retryAfterMs === undefined ? undefined : whole("retryAfterMs", retryAfterMs, UINT64_MAX),
    throttleKey: text("throttleKey", throttleKey),
    deadLetter: options.deadLetter ?? false,
  });
}

export function extendItem(delivery: Delivery, ms: number | undefined): Item {
  return deliveryItem(delivery, LeaseExtension, { extendMs: whole("ms", ms, UINT64_MAX) });
}

/** Gives back a message that nobody has seen: it is ready at once and no attempt is counted. */
export function releaseItem(delivery: Delivery): Item {
  return nackItem(delivery, "", { retryAfterMs: 0 });
}

type Named = Pick<AckRequest, "queue" | "messageId" | "leaseToken">;

function deliveryItem<T extends Named>(
  delivery: Delivery,
  codec: Codec<T>,
  rest: Omit<T, keyof Named>,
): Item {
  const queue = required("queue", delivery.queue);
  const messageId = required("messageId", delivery.id);
  const leaseToken = text("leaseToken", delivery.leaseToken);
  const request = { queue, messageId, leaseToken, ...rest } as T;
  const isRepeatable = leaseToken !== "";
  const frameSize = frameSizeOf(delivery);
  return { data: element(codec, request), queue, messageId, isRepeatable, leaseToken, frameSize };
}

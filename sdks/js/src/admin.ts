// SPDX-License-Identifier: AGPL-3.0-only
// Operating a broker: the requests of FilaAdmin and its answers as plain values. No I/O. Fields
// have the names of the contract, where each is described. API keys are in `access.ts`.

import { UINT32_MAX, UINT64_MAX, required, text, texts, whole } from "./arguments.js";
import type { Call } from "./connection.js";
import { member } from "./enums.js";
import type { Subject } from "./errors.js";
import * as gen from "./gen/fila/v1/admin.js";
import { Message, readFailure } from "./message.js";
import type { Failure } from "./message.js";
import type { CallOptions } from "./options.js";
import { readConfig, settingsOf } from "./settings.js";
import type { QueueConfig, QueueSettings } from "./settings.js";
import { encode } from "./wire.js";
import type { Codec } from "./wire.js";

/** Where a message is in its life. */
export type MessageState = "pending" | "delayed" | "leased";

/** Why something waits. */
export type WaitKind =
  | "throttled"
  | "concurrency"
  | "turn"
  | "delayed"
  | "paused"
  | "no_credit"
  | "leased"
  | "backpressure"
  | "hook_bypassed";

/** One row of the list of queues. */
export type QueueInfo = Readonly<gen.QueueInfo>;

/** How much went with a queue. */
export type DeletedQueue = Readonly<gen.DeleteQueueResponse>;

/** One fairness key of a queue. */
export type FairnessKeyStats = Readonly<
  Omit<gen.PerFairnessKeyStats, "roundPosition"> & {
    /** Its place in the round, 0 when it is its turn now; null when it does not take part. */
    roundPosition: number | null;
  }
>;

/** One throttle key: its token bucket and its concurrency limit. */
export type ThrottleKeyStats = Readonly<
  Omit<gen.PerThrottleKeyStats, "pausedUntil"> & { pausedUntil: Date | null }
>;

/** Some throttle keys, by key. `totalCount` includes those beyond the limit. */
export interface ThrottlePage {
  readonly throttles: readonly ThrottleKeyStats[];
  readonly totalCount: number;
}

/** What happened in a queue since the broker started. */
export type QueueCounters = Readonly<gen.QueueCounters>;

/** How a queue's hooks are doing. */
export type HookStats = Readonly<gen.HookStats>;

type NestedStats = "perKeyStats" | "perThrottleStats" | "counters" | "config" | "hooks";

/** Counts, scheduling state and settings of one queue. */
export type QueueStats = Readonly<
  Omit<gen.GetStatsResponse, NestedStats> & {
    perKeyStats: readonly FairnessKeyStats[];
    perThrottleStats: readonly ThrottleKeyStats[];
    counters: QueueCounters;
    config: QueueConfig;
    /** Null when the queue has no hooks. */
    hooks: HookStats | null;
  }
>;

/** One message as it lies in its queue. */
export interface PeekedMessage {
  readonly message: Message;
  /** Null for a state that only a newer broker knows. */
  readonly state: MessageState | null;
  readonly position: number;
}

/** Some messages, oldest first. `nextPosition` is 0 when nothing follows. */
export interface PeekPage {
  readonly messages: readonly PeekedMessage[];
  readonly nextPosition: number;
  readonly endPosition: number;
}

/** One reason to wait. */
export type WaitReason = Readonly<
  Omit<gen.WaitReason, "kind" | "until"> & { kind: WaitKind | null; until: Date | null }
>;

/** Why a message or a fairness key waits; the reason that decides comes first. */
export type Explanation = Readonly<
  Omit<gen.ExplainResponse, "reasons" | "estimatedAt" | "state" | "failures"> & {
    reasons: readonly WaitReason[];
    estimatedAt: Date | null;
    state: MessageState | null;
    /** The message's last five, oldest first. */
    failures: readonly Failure[];
  }
>;

/** Options of `deleteQueue`. */
export interface DeleteOptions extends CallOptions {
  /** Leaves the dead-letter queue in place. */
  readonly keepDeadLetters?: boolean | undefined;
}

/** Options of `listThrottles`. */
export interface ThrottleOptions extends CallOptions {
  /** Only keys in use that nobody configured. */
  readonly unset?: boolean | undefined;
  /** The most keys to return, 1000 unless told otherwise. */
  readonly limit?: number | undefined;
}

/** Options of `pauseThrottle`. */
export interface PauseThrottleOptions extends CallOptions {
  /** Ends the pause by itself after this time; without it the pause lasts until it is resumed. */
  readonly durationMs?: number | undefined;
}

/** Options of `stats`. */
export interface StatsOptions extends CallOptions {
  /** The most fairness keys to list, busiest first. */
  readonly maxKeys?: number | undefined;
}

/** Options of calls that can be narrowed to one fairness key. */
export interface FairnessKeyOptions extends CallOptions {
  readonly fairnessKey?: string | undefined;
}

/** Options of `peek`. */
export interface PeekOptions extends FairnessKeyOptions {
  /** The most messages to return, 10 unless told otherwise. */
  readonly limit?: number | undefined;
  readonly fromPosition?: number | undefined;
  readonly untilPosition?: number | undefined;
  readonly state?: MessageState | undefined;
  readonly excludePayload?: boolean | undefined;
}

/** Options of `redrive`. */
export interface RedriveOptions extends FairnessKeyOptions {
  /** The most messages to move; all without it. */
  readonly count?: number | undefined;
  readonly errorContains?: string | undefined;
  readonly messageIds?: readonly string[] | undefined;
}

/** Options of `explain`; name a fairness key or a message. */
export interface ExplainOptions extends FairnessKeyOptions {
  readonly messageId?: string | undefined;
}

const STATES: Readonly<Record<MessageState, gen.MessageState>> = {
  pending: gen.MessageState.PENDING,
  delayed: gen.MessageState.DELAYED,
  leased: gen.MessageState.LEASED,
};

/** A call of FilaAdmin. */
export function adminCall<Q, R, T>(
  method: string,
  request: Codec<Q>,
  values: Q,
  response: Codec<R>,
  read: (response: R) => T,
  about: Subject & { readonly isRepeatable?: boolean } = {},
): Call<T> {
  return {
    method: `/fila.v1.FilaAdmin/${method}`,
    request: encode(request, values),
    decode: (bytes) => read(response.decode(bytes)),
    ...about,
  };
}

/** Reads an answer that holds nothing. */
export function nothing(): void {
  return undefined;
}

// --- Queues --------------------------------------------------------------------------------------

export function createQueue(name: string, settings: QueueSettings): Call<string> {
  const queue = required("name", name);
  return adminCall(
    "CreateQueue",
    gen.CreateQueueRequest,
    { name: queue, config: settingsOf(settings).config },
    gen.CreateQueueResponse,
    (response) => response.deadLetterQueue,
    { queue },
  );
}

export function updateQueue(name: string, settings: QueueSettings): Call<QueueConfig> {
  const queue = required("queue", name);
  const { config, paths } = settingsOf(settings);
  return adminCall(
    "UpdateQueue",
    gen.UpdateQueueRequest,
    { queue, config, updateMask: paths },
    gen.UpdateQueueResponse,
    (response) => readConfig(response.config),
    { queue },
  );
}

export function deleteQueue(name: string, options: DeleteOptions): Call<DeletedQueue> {
  const queue = required("queue", name);
  return adminCall(
    "DeleteQueue",
    gen.DeleteQueueRequest,
    { queue, keepDeadLetters: options.keepDeadLetters ?? false },
    gen.DeleteQueueResponse,
    (response) => response,
    { queue },
  );
}

export function listQueues(): Call<QueueInfo[]> {
  return adminCall(
    "ListQueues",
    gen.ListQueuesRequest,
    {},
    gen.ListQueuesResponse,
    (response) => response.queues,
    { isRepeatable: true },
  );
}

export function stats(name: string, options: StatsOptions): Call<QueueStats> {
  const queue = required("queue", name);
  return adminCall(
    "GetStats",
    gen.GetStatsRequest,
    { queue, maxKeys: whole("maxKeys", options.maxKeys, UINT32_MAX) },
    gen.GetStatsResponse,
    readStats,
    { queue, isRepeatable: true },
  );
}

export function peek(name: string, options: PeekOptions): Call<PeekPage> {
  const queue = required("queue", name);
  const request: gen.PeekRequest = {
    queue,
    limit: whole("limit", options.limit ?? 10, UINT32_MAX),
    fromPosition: whole("fromPosition", options.fromPosition, UINT64_MAX),
    untilPosition: whole("untilPosition", options.untilPosition, UINT64_MAX),
    fairnessKey: text("fairnessKey", options.fairnessKey),
    state: stateNumber(options.state),
    excludePayload: options.excludePayload ?? false,
  };
  const about = { queue, isRepeatable: true };
  return adminCall("Peek", gen.PeekRequest, request, gen.PeekResponse, readPage, about);
}

function stateNumber(state: MessageState | undefined): gen.MessageState {
  if (state === undefined) return gen.MessageState.UNSPECIFIED;
  const number = STATES[state] as gen.MessageState | undefined;
  if (number !== undefined) return number;
  const known = Object.keys(STATES).join(", ");
  throw new RangeError(`state must be one of ${known}, got "${state}"`);
}

export function purge(name: string, options: FairnessKeyOptions): Call<number> {
  const about = narrowed(name, options);
  const read = (response: gen.PurgeResponse): number => response.purged;
  return adminCall("Purge", gen.PurgeRequest, about, gen.PurgeResponse, read, about);
}

export function pause(name: string, options: FairnessKeyOptions): Call<void> {
  const about = narrowed(name, options);
  const request = gen.PauseRequest.create(about);
  return adminCall("Pause", gen.PauseRequest, request, gen.PauseResponse, nothing, about);
}

export function resume(name: string, options: FairnessKeyOptions): Call<void> {
  const about = narrowed(name, options);
  const request = gen.ResumeRequest.create(about);
  return adminCall("Resume", gen.ResumeRequest, request, gen.ResumeResponse, nothing, about);
}

function narrowed(name: string, options: FairnessKeyOptions): gen.PurgeRequest {
  const fairnessKey = text("fairnessKey", options.fairnessKey);
  return { queue: required("queue", name), fairnessKey };
}

export function redrive(name: string, options: RedriveOptions): Call<number> {
  const queue = required("dlq", name);
  const request: gen.RedriveRequest = {
    dlqQueue: queue,
    count: whole("count", options.count, UINT64_MAX),
    fairnessKey: text("fairnessKey", options.fairnessKey),
    errorContains: text("errorContains", options.errorContains),
    messageIds: texts("messageIds", options.messageIds),
  };
  const read = (response: gen.RedriveResponse): number => response.redriven;
  return adminCall("Redrive", gen.RedriveRequest, request, gen.RedriveResponse, read, { queue });
}

export function cancel(name: string, messageId: string): Call<void> {
  const about = {
    queue: required("queue", name),
    messageId: required("messageId", messageId),
  };
  return adminCall(
    "CancelMessage",
    gen.CancelMessageRequest,
    about,
    gen.CancelMessageResponse,
    nothing,
    about,
  );
}

export function explain(name: string, options: ExplainOptions): Call<Explanation> {
  const queue = required("queue", name);
  const messageId = text("messageId", options.messageId);
  return adminCall(
    "Explain",
    gen.ExplainRequest,
    { queue, messageId, fairnessKey: text("fairnessKey", options.fairnessKey) },
    gen.ExplainResponse,
    readExplanation,
    { queue, messageId: messageId || undefined, isRepeatable: true },
  );
}

// --- Throttle keys -------------------------------------------------------------------------------

export function listThrottles(prefix: string, options: ThrottleOptions): Call<ThrottlePage> {
  return adminCall(
    "ListThrottles",
    gen.ListThrottlesRequest,
    {
      prefix: text("prefix", prefix),
      unset: options.unset ?? false,
      limit: whole("limit", options.limit, UINT32_MAX),
    },
    gen.ListThrottlesResponse,
    ({ throttles, totalCount }) => ({ throttles: throttles.map(readThrottle), totalCount }),
    { isRepeatable: true },
  );
}

export function pauseThrottle(key: string, options: PauseThrottleOptions): Call<void> {
  const request = gen.PauseRequest.create({
    throttleKey: required("key", key),
    durationMs: whole("durationMs", options.durationMs, UINT64_MAX),
  });
  return adminCall("Pause", gen.PauseRequest, request, gen.PauseResponse, nothing);
}

export function resumeThrottle(key: string): Call<void> {
  const request = gen.ResumeRequest.create({ throttleKey: required("key", key) });
  return adminCall("Resume", gen.ResumeRequest, request, gen.ResumeResponse, nothing);
}

// --- Runtime configuration -----------------------------------------------------------------------

export function setConfig(key: string, value: string): Call<void> {
  return adminCall(
    "SetConfig",
    gen.SetConfigRequest,
    { ...entryOf(key, value), entries: [] },
    gen.SetConfigResponse,
    nothing,
    { isRepeatable: true },
  );
}

export function setConfigAll(entries: Readonly<Record<string, string>>): Call<void> {
  const pairs = Object.entries(entries).map(([key, value]) => entryOf(key, value));
  return adminCall(
    "SetConfig",
    gen.SetConfigRequest,
    gen.SetConfigRequest.create({ entries: pairs }),
    gen.SetConfigResponse,
    nothing,
    { isRepeatable: true },
  );
}

function entryOf(key: string, value: string): gen.ConfigEntry {
  return { key: required("key", key), value: required("value", value) };
}

export function getConfig(key: string): Call<string> {
  return adminCall(
    "GetConfig",
    gen.GetConfigRequest,
    { key: required("key", key) },
    gen.GetConfigResponse,
    (response) => response.value,
    { isRepeatable: true },
  );
}

// Not repeatable: the second one would report that the entry is missing.
export function deleteConfig(key: string): Call<void> {
  return adminCall(
    "DeleteConfig",
    gen.DeleteConfigRequest,
    { key: required("key", key) },
    gen.DeleteConfigResponse,
    nothing,
  );
}

export function listConfig(prefix: string): Call<Record<string, string>> {
  return adminCall(
    "ListConfig",
    gen.ListConfigRequest,
    { prefix: text("prefix", prefix) },
    gen.ListConfigResponse,
    (response) => Object.fromEntries(response.entries.map(({ key, value }) => [key, value])),
    { isRepeatable: true },
  );
}

// --- Answers -------------------------------------------------------------------------------------

function readStats(raw: gen.GetStatsResponse): QueueStats {
  return {
    ...raw,
    perKeyStats: raw.perKeyStats.map((key) => ({
      ...key,
      roundPosition: key.roundPosition ?? null,
    })),
    perThrottleStats: raw.perThrottleStats.map(readThrottle),
    counters: raw.counters ?? gen.QueueCounters.create(),
    config: readConfig(raw.config),
    hooks: raw.hooks ?? null,
  };
}

function readThrottle(raw: gen.PerThrottleKeyStats): ThrottleKeyStats {
  return { ...raw, pausedUntil: raw.pausedUntil ?? null };
}

function readPage(raw: gen.PeekResponse): PeekPage {
  const messages = raw.messages.flatMap(({ message, state, position }) =>
    message === undefined
      ? []
      : [{ message: new Message(message), state: stateOf(state), position }],
  );
  return { messages, nextPosition: raw.nextPosition, endPosition: raw.endPosition };
}

function readExplanation(raw: gen.ExplainResponse): Explanation {
  return {
    ...raw,
    reasons: raw.reasons.map((reason) => ({
      ...reason,
      kind: member(gen.WaitKind, reason.kind) as WaitKind | null,
      until: reason.until ?? null,
    })),
    estimatedAt: raw.estimatedAt ?? null,
    state: stateOf(raw.state),
    failures: raw.failures.map(readFailure),
  };
}

function stateOf(state: gen.MessageState): MessageState | null {
  return member(gen.MessageState, state) as MessageState | null;
}

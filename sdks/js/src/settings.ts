// SPDX-License-Identifier: AGPL-3.0-only
// A queue's settings: their names here and in the contract, what each may hold, and how they are
// read back.

import { UINT32_MAX, UINT64_MAX, text, whole } from "./arguments.js";
import { HookErrorPolicy as RawPolicy, QueueConfig as RawConfig } from "./gen/fila/v1/admin.js";

/** What to do with a message whose on_enqueue hook fails. */
export type HookErrorPolicy = "default" | "reject";

/** All settings of a queue; 0 and "" mean the default. */
export type QueueConfig = Readonly<
  Omit<RawConfig, "onHookError"> & { onHookError: HookErrorPolicy }
>;

/** The settings that `createQueue` and `updateQueue` take; 0 and "" mean the default. */
export type QueueSettings = {
  readonly [Name in keyof QueueConfig]?: QueueConfig[Name] | undefined;
};

type Name = keyof QueueConfig;

const POLICIES: Readonly<Record<HookErrorPolicy, RawPolicy>> = {
  default: RawPolicy.DEFAULT,
  reject: RawPolicy.REJECT,
};

const SHOWN_MAX = 60;

// The contract's name, and the largest number or null for a text.
const FIELDS: Readonly<Record<Name, readonly [path: string, max: number | null]>> = {
  onEnqueueScript: ["on_enqueue_script", null],
  onFailureScript: ["on_failure_script", null],
  visibilityTimeoutMs: ["visibility_timeout_ms", UINT64_MAX],
  maxAttempts: ["max_attempts", UINT32_MAX],
  retryDelayMs: ["retry_delay_ms", UINT64_MAX],
  retryDelayMaxMs: ["retry_delay_max_ms", UINT64_MAX],
  defaultTtlMs: ["default_ttl_ms", UINT64_MAX],
  idempotencyWindowMs: ["idempotency_window_ms", UINT64_MAX],
  maxMessages: ["max_messages", UINT64_MAX],
  onHookError: ["on_hook_error", null],
  hookTimeoutMs: ["hook_timeout_ms", UINT32_MAX],
  hookMemoryLimitBytes: ["hook_memory_limit_bytes", UINT64_MAX],
  quantum: ["quantum", UINT32_MAX],
};

/** The settings for the wire, and the contract's names of those that were given. */
export function settingsOf(settings: QueueSettings): { config: RawConfig; paths: string[] } {
  const values: Record<string, unknown> = {};
  const paths: string[] = [];
  for (const [name, value] of Object.entries(settings) as [Name, unknown][]) {
    const field = FIELDS[name] as (typeof FIELDS)[Name] | undefined;
    if (field === undefined) {
      const known = Object.keys(FIELDS).sort().join(", ");
      throw new TypeError(`"${name}" is not a setting of a queue; they are ${known}`);
    }
    if (value === undefined) continue;
    if (value === null) {
      throw new TypeError(`setting ${name} must not be null; 0 or an empty text mean the default`);
    }
    values[name] = checked(name, value, field[1]);
    paths.push(field[0]);
  }
  return { config: RawConfig.create(values), paths };
}

function checked(name: Name, value: unknown, max: number | null): unknown {
  if (name === "onHookError") {
    const policy = POLICIES[value as HookErrorPolicy] as RawPolicy | undefined;
    if (policy !== undefined) return policy;
    const known = Object.keys(POLICIES).join(" or ");
    throw new RangeError(`onHookError must be ${known}, got "${String(value)}"`);
  }
  return max === null ? text(name, value as string) : whole(name, value as number, max);
}

export function readConfig(raw: RawConfig = RawConfig.create()): QueueConfig {
  const isReject = raw.onHookError === RawPolicy.REJECT;
  return { ...raw, onHookError: isReject ? "reject" : "default" };
}

/** What of the settings is not as it is there, each with both values. */
export function differences(wanted: QueueSettings, there: QueueConfig): string[] {
  return (Object.keys(FIELDS) as Name[])
    .filter((name) => wanted[name] !== undefined && wanted[name] !== there[name])
    .map((name) => `${name} is ${shown(there[name])} and not ${shown(wanted[name])}`);
}

// A script is too long to be read in an error.
function shown(value: unknown): string {
  const words = JSON.stringify(value);
  return words.length > SHOWN_MAX ? `${words.slice(0, SHOWN_MAX)}..."` : words;
}

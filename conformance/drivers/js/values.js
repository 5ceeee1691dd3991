// SPDX-License-Identifier: AGPL-3.0-only
// Between the protocol's values and the SDK's.

import { FilaError } from "@fila/client";

/** The fields that are there, named as in JavaScript. */
export function camel(fields) {
  const present = Object.entries(fields ?? {}).filter(([, value]) => value !== null);
  const renamed = present.map(([name, value]) => [
    name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase()),
    value,
  ]);
  return Object.fromEntries(renamed);
}

export function bytes(text) {
  return text === undefined ? undefined : Buffer.from(text, "base64");
}

export function produced({ payload, deliverAtMs, ...fields }) {
  const deliverAt = deliverAtMs === undefined ? undefined : new Date(deliverAtMs);
  return { ...fields, payload: bytes(payload), deliverAt };
}

export function shown(message) {
  return {
    id: message.id,
    queue: message.queue,
    headers: message.headers,
    payload: message.payload.toString("base64"),
    fairness_key: message.fairnessKey,
    weight: message.weight,
    throttle_keys: message.throttleKeys,
    attempt_count: message.attemptCount,
    lease_token: message.leaseToken,
    last_error: message.lastError,
    failures: message.failures.map(({ failedAt, cause, error }) => ({
      failed_at_ms: failedAt?.getTime() ?? null,
      ...{ cause, error },
    })),
    enqueued_at_ms: message.enqueuedAt?.getTime() ?? null,
    lease_expires_at_ms: message.leaseExpiresAt?.getTime() ?? null,
  };
}

/** An error of the SDK, by its type; undefined for anything else. */
export function failure(error) {
  if (error instanceof FilaError) {
    const words = error.constructor.name.replace(/Error$/, "").match(/[A-Z][a-z]*/g);
    const kind = words.join("_").toLowerCase();
    const { message, retryable, code, reason, queue, messageId } = error;
    return { kind, message, retryable, code, reason, queue, message_id: messageId };
  }
  if (error?.name === "AbortError") {
    return { kind: "cancelled", message: error.message, retryable: false };
  }
  return undefined;
}

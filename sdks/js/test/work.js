// SPDX-License-Identifier: AGPL-3.0-only
// What tests of workers share.

import { Client } from "@fila/client";

import { ScriptedBroker, framesThenIdle } from "./broker.js";

export const QUIET = { signals: false };

export async function start(context, ...frames) {
  const broker = await ScriptedBroker.start(context);
  const backoff = { initialMs: 1, maximumMs: 50 };
  const client = new Client(broker.target, { timeoutMs: 60_000, backoff });
  context.after(() => client.close());
  if (frames.length > 0) broker.script("Consume", framesThenIdle(...frames));
  broker.script("SettleGrants", ({ settlements }) => ({
    results: settlements.map(() => ({ messages: 1, leaseExpiresAt: new Date(5) })),
  }));
  return { broker, client };
}

/** Acks in the order in which they were sent. */
export function acked(broker) {
  return broker.requests("AckBatch").flatMap(({ acks }) => acks.map(({ messageId }) => messageId));
}

export function nacked(broker) {
  return broker.requests("NackBatch").flatMap(({ nacks }) => nacks);
}

/** A promise and what settles it. */
export function latch() {
  let open;
  const opened = new Promise((resolve) => {
    open = resolve;
  });
  return { open, opened };
}

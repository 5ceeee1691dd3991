// SPDX-License-Identifier: AGPL-3.0-only
// Whole frames: acks of all their messages travel as one, and nobody can tell by the outcome.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, InternalError, LeaseExpiredError, QueueNotFoundError } from "@fila/client";

import { ScriptedBroker, frame, refuse, status, types } from "./broker.js";

const { ErrorReason } = types;

/** Receive returns frames of so many messages: t0-0, t0-1, ... under the token t0. */
async function start(context, ...sizes) {
  return startWith(await ScriptedBroker.start(context), context, ...sizes);
}

async function startWith(broker, context, ...sizes) {
  const client = new Client(broker.target, { timeoutMs: 60_000 });
  context.after(() => client.close());
  let number = 0;
  broker.script("Receive", () => {
    const ids = Array.from({ length: sizes[number] }, (_, n) => `t${number}-${n}`);
    const sent = frame(...ids);
    for (const { metadata } of sent.messages) metadata.leaseToken = `t${number}`;
    number += 1;
    return sent;
  });
  const frames = [];
  for (const maxMessages of sizes) frames.push(await client.receive("orders", { maxMessages }));
  return { broker, client, frames };
}

/** Answers settlements with what was expected, and with errors by token. */
function settle(broker, refused = {}) {
  broker.script("SettleGrants", ({ settlements }) => ({
    results: settlements.map(({ leaseToken, expectedMessages }) =>
      leaseToken in refused
        ? { error: { reason: refused[leaseToken], message: "no" } }
        : { messages: expectedMessages },
    ),
  }));
}

function settlements(broker) {
  const items = broker.requests("SettleGrants").flatMap((request) => request.settlements);
  return items.map((item) => `${item.queue} ${item.leaseToken} ${item.expectedMessages}`);
}

function acked(broker) {
  return broker.requests("AckBatch").flatMap(({ acks }) => acks.map((ack) => ack.messageId));
}

test("frames that are acked together travel as one", async (context) => {
  const { broker, client, frames } = await start(context, 3, 2500);
  settle(broker);
  const outcomes = await client.ackMany([...frames[1], ...frames[0]]);
  assert.ok(outcomes.length === 2503 && outcomes.every((outcome) => outcome === null));
  assert.deepEqual(settlements(broker), ["orders t1 2500", "orders t0 3"]);
  assert.deepEqual(acked(broker), []);
});

test("what is not whole is acked one by one", async (context) => {
  const { broker, client, frames } = await start(context, 3, 1, 2);
  settle(broker);
  const twice = frames[2][0];
  const outcomes = await client.ackMany([...frames[0].slice(0, 2), ...frames[1], twice, twice]);
  assert.deepEqual(outcomes, [null, null, null, null, null]);
  assert.deepEqual(settlements(broker), []);
  assert.deepEqual(acked(broker), ["t0-0", "t0-1", "t1-0", "t2-0", "t2-0"]);
});

test("a frame that is refused", async (context) => {
  const { broker, client, frames } = await start(context, 2, 2, 2);
  settle(broker, { t0: ErrorReason.LEASE_EXPIRED, t1: ErrorReason.QUEUE_NOT_FOUND });
  const error = { reason: ErrorReason.LEASE_EXPIRED, message: "late" };
  broker.script("AckBatch", () => ({ results: [{}, { error }] }));
  const outcomes = await client.ackMany(frames.flat());
  assert.deepEqual([outcomes[0], outcomes[4], outcomes[5]], [null, null, null]);
  assert.ok(outcomes[1] instanceof LeaseExpiredError);
  assert.ok(outcomes[2] instanceof QueueNotFoundError);
  assert.deepEqual([outcomes[3].queue, outcomes[3].messageId], ["orders", "t1-1"]);
  assert.deepEqual(acked(broker), ["t0-0", "t0-1"]);
});

test("nothing is acked after grants that could not be settled", async (context) => {
  const { broker, client, frames } = await start(context, 2, 2);
  // Not "unavailable", which is tried again until the deadline and may end with that.
  broker.script("SettleGrants", refuse(status.INTERNAL, "broken"));
  const outcomes = await client.ackMany([...frames[0], frames[1][0]]);
  assert.ok(outcomes.every((outcome) => outcome instanceof InternalError));
  assert.deepEqual(acked(broker), []);
});

test("a broker that knows no grants is asked once", async (context) => {
  const older = await ScriptedBroker.start(context, { hasPipelines: false });
  const { broker, client, frames } = await startWith(older, context, 2, 2);
  broker.script("SettleGrants", refuse(status.UNIMPLEMENTED, "what?"));
  for (const messages of frames) {
    assert.deepEqual(await client.ackMany(messages), [null, null]);
  }
  assert.equal(broker.calls("SettleGrants").length, 1);
  assert.deepEqual(acked(broker), ["t0-0", "t0-1", "t1-0", "t1-1"]);
});

test("concurrent acks of a frame are one", async (context) => {
  const { broker, frames } = await start(context, 5);
  settle(broker);
  await Promise.all(frames[0].map((message) => message.ack()));
  assert.deepEqual(settlements(broker), ["orders t0 5"]);
  assert.deepEqual(acked(broker), []);
});

test("a grant is settled by its token", async (context) => {
  const { broker, client } = await start(context);
  const leaseExpiresAt = new Date(1_900_000_000_000);
  broker.script("SettleGrants", () => ({ results: [{ messages: 7, leaseExpiresAt }] }));
  assert.equal(await client.ackGrant("orders", "t", { exceptMessageIds: ["a", "b"] }), 7);
  const pressure = { retryAfterMs: 0, throttleKey: "k", deadLetter: true };
  assert.equal(await client.nackGrant("orders", "t", "no", pressure), 7);
  assert.deepEqual(await client.extendGrant("orders", "t", { ms: 500 }), leaseExpiresAt);
  const [ack, nack, extend] = broker
    .requests("SettleGrants")
    .flatMap((request) => request.settlements);
  assert.deepEqual([ack.ack, ack.exceptMessageIds, ack.expectedMessages], [{}, ["a", "b"], 0]);
  assert.deepEqual(nack.nack, { error: "no", ...pressure });
  assert.deepEqual(extend.extend, { extendMs: 500 });
  settle(broker, { t: ErrorReason.LEASE_EXPIRED });
  await assert.rejects(client.ackGrant("orders", "t"), LeaseExpiredError);
  await assert.rejects(client.ackGrant("orders", "t", { exceptMessageIds: "abc" }), TypeError);
});

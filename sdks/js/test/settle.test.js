// SPDX-License-Identifier: AGPL-3.0-only
// Settlements that carry their lease token survive a broker that goes away in the middle.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Client,
  FilaError,
  LeaseExpiredError,
  MessageNotFoundError,
  UnavailableError,
} from "@fila/client";

import { ScriptedBroker, frame, leased, refusal, status, types, until } from "./broker.js";

const { ErrorReason } = types;

async function start(context, options = {}) {
  const broker = await ScriptedBroker.start(context);
  const backoff = { initialMs: 1, maximumMs: 20 };
  const client = new Client(broker.target, { timeoutMs: 60_000, backoff, ...options });
  context.after(() => client.close());
  return { broker, client };
}

/** Drops the connection of the first request, and answers later ones with this reason. */
function breakOnce(broker, method, reason) {
  let attempts = 0;
  broker.script(method, (request) => {
    attempts += 1;
    if (attempts === 1) throw refusal(status.UNAVAILABLE, "gone");
    const items = request.acks ?? request.nacks ?? request.extensions ?? request.settlements;
    const error = reason === undefined ? undefined : { reason, message: "no" };
    return { results: items.map(() => ({ error, leaseExpiresAt: new Date(5) })) };
  });
}

const options = { leaseToken: "t" };
const ways = [
  ["AckBatch", (client, given) => client.ack("orders", "m", given)],
  ["NackBatch", (client, given) => client.nack("orders", "m", "boom", given)],
  ["ExtendLease", (client, given) => client.extend("orders", "m", given)],
];

for (const [method, call] of ways) {
  test(`${method} with a token is sent again`, async (context) => {
    const { broker, client } = await start(context);
    breakOnce(broker, method);
    await call(client, options);
    assert.equal(broker.calls(method).length, 2);
  });

  test(`${method} without a token is not`, async (context) => {
    const { broker, client } = await start(context);
    breakOnce(broker, method);
    await assert.rejects(call(client, {}), UnavailableError);
    assert.equal(broker.calls(method).length, 1);
  });
}

for (const [method, reason, error] of [
  ["AckBatch", ErrorReason.MESSAGE_NOT_FOUND, null],
  ["AckBatch", ErrorReason.LEASE_EXPIRED, LeaseExpiredError],
  ["NackBatch", ErrorReason.MESSAGE_NOT_FOUND, null],
  ["NackBatch", ErrorReason.LEASE_EXPIRED, null],
  ["ExtendLease", ErrorReason.MESSAGE_NOT_FOUND, MessageNotFoundError],
]) {
  const end = error === null ? "success" : "an error";
  const [, call] = ways.find(([name]) => name === method);
  test(`${ErrorReason[reason]} after a repeat of ${method} is ${end}`, async (context) => {
    const { broker, client } = await start(context);
    breakOnce(broker, method, reason);
    if (error === null) await call(client, options);
    else await assert.rejects(call(client, options), error);
    assert.equal(broker.calls(method).length, 2);
  });
}

test("without a repeat a settlement that finds nothing is an error", async (context) => {
  const { broker, client } = await start(context);
  const error = { reason: ErrorReason.MESSAGE_NOT_FOUND, message: "no" };
  broker.script("AckBatch", () => ({ results: [{ error }] }));
  await assert.rejects(client.ack("orders", "m", options), MessageNotFoundError);
});

test("attempts end with the deadline", async (context) => {
  const { broker, client } = await start(context);
  broker.script("AckBatch", () => {
    throw refusal(status.UNAVAILABLE, "away");
  });
  const ended = client.ack("orders", "m", { leaseToken: "t", timeoutMs: 3_000 });
  // The deadline comes between attempts, or in the middle of one.
  await assert.rejects(ended, (error) => error instanceof FilaError && error.retryable);
  assert.ok(broker.calls("AckBatch").length > 1);
});

test("each caller of a batch repeats its own", async (context) => {
  const { broker, client } = await start(context);
  breakOnce(broker, "AckBatch");
  const outcomes = await Promise.allSettled([
    client.ack("orders", "a", options),
    client.ack("orders", "b"),
    client.ack("orders", "c", options),
  ]);
  assert.deepEqual(outcomes.map((outcome) => outcome.status), [
    "fulfilled",
    "rejected",
    "fulfilled",
  ]);
  const repeated = broker
    .requests("AckBatch")
    .slice(1)
    .flatMap(({ acks }) => acks.map(({ messageId }) => messageId));
  assert.deepEqual(repeated.sort(), ["a", "c"]);
});

test("many acks and nacks are repeated, too", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Receive", () => frame("a", "b"));
  const messages = await client.receive("orders", { maxMessages: 2 });
  breakOnce(broker, "AckBatch", ErrorReason.MESSAGE_NOT_FOUND);
  breakOnce(broker, "NackBatch", ErrorReason.LEASE_EXPIRED);
  assert.deepEqual(await client.ackMany(messages), [null, null]);
  assert.deepEqual(await client.nackMany(messages, "boom"), [null, null]);
});

for (const [name, ack] of [
  ["of one call", (client, messages) => client.ackMany(messages)],
  ["of single calls", (_, messages) => Promise.all(messages.map((found) => found.ack()))],
]) {
  test(`a whole frame ${name} that was settled before the connection broke`, async (context) => {
    const { broker, client } = await start(context);
    broker.script("Receive", () => leased("t", 60_000, "a", "b"));
    // The first request was applied, and its answer was lost.
    breakOnce(broker, "SettleGrants", ErrorReason.LEASE_EXPIRED);
    const error = { reason: ErrorReason.MESSAGE_NOT_FOUND, message: "gone" };
    broker.script("AckBatch", ({ acks }) => ({ results: acks.map(() => ({ error })) }));
    const messages = await client.receive("orders", { maxMessages: 2 });
    const outcomes = await ack(client, messages);
    assert.ok(outcomes.every((outcome) => !outcome), `${outcomes}`);
    assert.ok(broker.calls("SettleGrants").length > 0);
  });
}

test("a grant is not settled twice", async (context) => {
  const { broker, client } = await start(context);
  breakOnce(broker, "SettleGrants");
  await assert.rejects(client.ackGrant("orders", "t"), UnavailableError);
  await until(() => broker.calls("SettleGrants").length === 1, "the request");
});

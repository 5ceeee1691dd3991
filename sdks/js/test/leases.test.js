// SPDX-License-Identifier: AGPL-3.0-only
// Leases of what waits are kept by frames, and nothing is handed out whose lease has ended.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Client } from "@fila/client";

import {
  ScriptedBroker,
  framesThenIdle,
  idle,
  leased,
  refusal,
  refuse,
  status,
  types,
  until,
} from "./broker.js";

// Half of it is time enough for a request, on a machine that is busy with other things, too.
// Half of it is enough for a machine that is busy.
const LEASE_MS = 4_000;

async function start(context, options = {}) {
  const broker = await ScriptedBroker.start(context, options);
  const client = new Client(broker.target, { timeoutMs: 60_000 });
  context.after(() => client.close());
  return { broker, client };
}

/** Answers settlements of grants; the new leases end at this time. */
const END = new Date(1_900_000_000_000);
function settled({ settlements }) {
  return { results: settlements.map(() => ({ messages: 1, leaseExpiresAt: END })) };
}

/** What was extended by token, in order. */
function extended(broker) {
  return broker.requests("SettleGrants").map(({ settlements }) =>
    settlements.map(({ queue, leaseToken, extend }) => [queue, leaseToken, extend.extendMs]),
  );
}

async function nextId(consumer) {
  const { done, value } = await consumer.next();
  return done ? null : value.id;
}

test("frames of which something waits are extended by one request", async (context) => {
  const { broker, client } = await start(context);
  broker.script("SettleGrants", settled);
  broker.script(
    "Consume",
    framesThenIdle(
      leased("t-1", LEASE_MS, "a", "b"),
      leased("t-2", LEASE_MS, "c"),
      leased("t-3", LEASE_MS, "d"),
    ),
  );
  const consumer = client.consume("orders");
  assert.equal(await nextId(consumer), "a");
  await until(() => extended(broker).length >= 2, "the second extension");
  const all = ["t-1", "t-2", "t-3"].map((token) => ["orders", token, LEASE_MS]);
  assert.deepEqual(extended(broker), [all, all]);
  const { value } = await consumer.next();
  assert.equal(value.id, "b");
  assert.deepEqual(value.leaseExpiresAt, END);
  // Nothing is held of the first any more.
  await until(() => extended(broker).length >= 3, "the third extension");
  assert.deepEqual(extended(broker)[2], all.slice(1));
});

test("leases of several consumers of a client go together", async (context) => {
  const { broker, client } = await start(context);
  broker.script("SettleGrants", settled);
  broker.script("Consume", async function* ({ queue }, call) {
    // What arrives together is due together.
    await until(() => broker.calls("Consume").length === 2, "both streams");
    yield leased(`t-${queue}`, LEASE_MS, "a", "b");
    await idle(call);
  });
  await Promise.all([client.consume("orders").next(), client.consume("bills").next()]);
  await until(() => extended(broker).length >= 1, "the extension");
  assert.deepEqual(extended(broker)[0].map(([, token]) => token).sort(), ["t-bills", "t-orders"]);
});

test("nothing is handed out whose lease has ended", async (context) => {
  const { broker, client } = await start(context);
  let go;
  const gone = new Promise((resolve) => {
    go = resolve;
  });
  broker.script("Consume", async function* (request, call) {
    yield leased("t-1", 300, "a", "b", "c");
    await gone;
    yield leased("t-2", 600_000, "d");
    await idle(call);
  });
  const consumer = client.consume("orders", { extendLeases: false });
  assert.equal(await nextId(consumer), "a");
  await sleep(400);
  const next = nextId(consumer);
  go();
  assert.equal(await next, "d");
  assert.deepEqual(extended(broker), []);
  await consumer.close();
  // What has ended is not this consumer's to give back.
  assert.deepEqual(broker.requests("NackBatch"), []);
});

test("a frame that was refused is lost, and others are not", async (context) => {
  const { broker, client } = await start(context);
  const error = { reason: types.ErrorReason.LEASE_EXPIRED, message: "too late" };
  broker.script("SettleGrants", ({ settlements }) => ({
    results: settlements.map(({ leaseToken }) =>
      leaseToken === "t-1" ? { error } : { messages: 1, leaseExpiresAt: END },
    ),
  }));
  const frames = [leased("t-1", LEASE_MS, "a", "b"), leased("t-2", LEASE_MS, "c", "d")];
  broker.script("Consume", framesThenIdle(...frames));
  const consumer = client.consume("orders");
  assert.equal(await nextId(consumer), "a");
  await until(() => extended(broker).length >= 2, "the second extension");
  assert.deepEqual(extended(broker)[1], [["orders", "t-2", LEASE_MS]]);
  assert.deepEqual([await nextId(consumer), await nextId(consumer)], ["c", "d"]);
});

test("a broker that is away is asked again until the lease ends", async (context) => {
  const { broker, client } = await start(context);
  let attempts = 0;
  broker.script("SettleGrants", (request) => {
    attempts += 1;
    if (attempts < 3) throw refusal(status.UNAVAILABLE, "away");
    return settled(request);
  });
  broker.script("Consume", framesThenIdle(leased("t", LEASE_MS, "a", "b")));
  const consumer = client.consume("orders");
  assert.equal(await nextId(consumer), "a");
  await until(() => attempts >= 4, "an extension after one that succeeded");
  assert.equal(await nextId(consumer), "b");
});

for (const hasPipelines of [true, false]) {
  const way = hasPipelines ? "a pipeline" : "unary calls";
  test(`a broker that knows no grants is given each message, by ${way}`, async (context) => {
    const { broker, client } = await start(context, { hasPipelines });
    broker.script("SettleGrants", refuse(status.UNIMPLEMENTED, "no grants"));
    const error = { reason: types.ErrorReason.MESSAGE_NOT_FOUND, message: "gone" };
    broker.script("ExtendLease", ({ extensions }) => ({
      results: extensions.map(({ messageId }) =>
        messageId === "c" ? { error } : { leaseExpiresAt: END },
      ),
    }));
    broker.script("Consume", framesThenIdle(leased("t", LEASE_MS, "a", "b", "c", "d")));
    const consumer = client.consume("orders");
    assert.equal(await nextId(consumer), "a");
    const named = () =>
      broker.requests("ExtendLease").map(({ extensions }) =>
        extensions.map(({ messageId, leaseToken, extendMs }) => {
          assert.deepEqual([leaseToken, extendMs], ["t", LEASE_MS]);
          return messageId;
        }),
      );
    await until(() => named().length >= 2, "the second extension");
    assert.deepEqual(named().slice(0, 2), [["b", "c", "d"], ["b", "d"]]);
    assert.deepEqual([await nextId(consumer), await nextId(consumer)], ["b", "d"]);
    // Through the pipeline, and then as the call that it stands for.
    assert.equal(broker.calls("SettleGrants").length, hasPipelines ? 2 : 1);
  });
}

test("an end that the application has chosen is not overruled", async (context) => {
  const { broker, client } = await start(context);
  broker.script("SettleGrants", settled);
  broker.script("Consume", framesThenIdle(leased("t", LEASE_MS, "a", "b", "c")));
  const consumer = client.consume("orders");
  const { value } = await consumer.next();
  await value.extend(600_000);
  await until(() => broker.calls("ExtendLease").length >= 2, "the extension of the others");
  const [, { extensions }] = broker.requests("ExtendLease");
  assert.deepEqual(extensions.map(({ messageId }) => messageId), ["b", "c"]);
  assert.deepEqual(extended(broker), []);
});

test("leases are not kept after the close", async (context) => {
  const { broker, client } = await start(context);
  broker.script("SettleGrants", settled);
  broker.script("Consume", framesThenIdle(leased("t", 600, "a", "b")));
  const consumer = client.consume("orders");
  assert.equal(await nextId(consumer), "a");
  await consumer.close();
  const before = broker.calls("SettleGrants").length;
  await sleep(900);
  assert.equal(broker.calls("SettleGrants").length, before);
});

// SPDX-License-Identifier: AGPL-3.0-only
// API keys that change while a client lives.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, UnauthenticatedError, UnavailableError } from "@fila/client";

import { Gate, ScriptedBroker, frame, framesThenIdle, refuse, status, until } from "./broker.js";

async function start(context, apiKey) {
  const broker = await ScriptedBroker.start(context);
  broker.script("DeleteQueue", () => ({}));
  broker.script("Consume", framesThenIdle(frame("a")));
  const client = new Client(broker.target, { apiKey, timeoutMs: 60_000 });
  context.after(() => client.close());
  return { broker, client };
}

function keys(broker) {
  return broker.seen.map(({ metadata }) => metadata.authorization);
}

for (const [what, giverOf] of [
  ["at once", (next) => next],
  ["later", (next) => async () => next()],
]) {
  test(`a key is asked for with each call and stream, and may come ${what}`, async (context) => {
    let number = 0;
    const giver = giverOf(() => `key-${(number += 1)}`);
    const { broker, client } = await start(context, giver);
    await client.deleteQueue("orders");
    await client.enqueue("orders");
    await client.consume("orders").next();
    await client.deleteQueue("orders");
    const expected = [1, 2, 3, 4].map((count) => `Bearer key-${count}`);
    assert.deepEqual(keys(broker), expected);
  });
}

test("another key opens another pipeline, and what is under way is answered", async (context) => {
  let key = "old";
  const { broker, client } = await start(context, () => key);
  const gate = new Gate(broker);
  const first = client.enqueue("orders", null, Buffer.from("a"));
  await until(() => broker.seen.length === 1);
  key = "new";
  const second = client.enqueue("orders", null, Buffer.from("b"));
  await until(() => broker.seen.length === 2);
  gate.open();
  assert.match(await first, /^a#/);
  assert.match(await second, /^b#/);
  assert.deepEqual(keys(broker), ["Bearer old", "Bearer new"]);
  assert.equal(broker.pipelines.length, 2);
  await until(() => broker.pipelines[0].isEnded, "the end of the old pipeline");
  assert.ok(!broker.pipelines[1].isEnded);
  await client.enqueue("orders");
  assert.equal(broker.pipelines.length, 2);
});

test("what the giver throws fails that call alone", async (context) => {
  const mine = new Error("the vault is sealed");
  let isSealed = true;
  const { broker, client } = await start(context, () => {
    if (isSealed) throw mine;
    return "open";
  });
  for (const call of [
    client.deleteQueue("orders"),
    client.enqueue("orders"),
    client.enqueueMany([{ queue: "orders" }]).then(([{ error }]) => Promise.reject(error)),
    client.consume("orders").next(),
  ]) {
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof UnauthenticatedError);
      assert.equal(error.cause, mine);
      assert.match(error.message, /the function that gives the apiKey failed: .*vault is sealed/);
      return true;
    });
  }
  assert.deepEqual(broker.seen, []);
  isSealed = false;
  await client.enqueue("orders");
  assert.deepEqual(keys(broker), ["Bearer open"]);
});

test("what the giver throws is a failure whatever it is, and no close fails for it", async (t) => {
  let isSealed = false;
  const { broker, client } = await start(t, async () => {
    if (isSealed) throw "sealed";
    return "open";
  });
  broker.script("Consume", framesThenIdle(frame("a", "b")));
  const consumer = client.consume("orders");
  await consumer.next();
  isSealed = true;
  const sealed = { name: "UnauthenticatedError", cause: "sealed" };
  await assert.rejects(client.enqueue("orders"), sealed);
  await assert.rejects(client.ack("orders", "a"), sealed);
  await consumer.close();
  assert.equal(broker.calls("NackBatch").length, 0);
});

test("a key that no header can carry is refused, and not shown", async (context) => {
  for (const key of ["", "a b", "ä", undefined]) {
    const { broker, client } = await start(context, () => key);
    await assert.rejects(client.deleteQueue("orders"), {
      name: "UnauthenticatedError",
      message: /apiKey must be printable ASCII without spaces, and not empty/,
    });
    assert.deepEqual(broker.seen, []);
  }
});

test("consumers ask a giver that is UNAVAILABLE again; any thenable will do", async (t) => {
  let failures = 2;
  const { broker, client } = await start(t, () => {
    failures -= 1;
    if (failures >= 0) throw new UnavailableError("the vault restarts");
    return { then: (resolve) => resolve("open") };
  });
  broker.script("Consume", framesThenIdle(frame("a")));
  const { value } = await client.consume("orders").next();
  assert.equal(value.id, "a");
  assert.deepEqual(keys(broker), ["Bearer open"]);
});

test("a key that does not come is waited for within the deadline", async (context) => {
  const { broker, client } = await start(context, () => new Promise(() => undefined));
  for (const call of [
    () => client.deleteQueue("q", { timeoutMs: 50 }),
    () => client.ping({ timeoutMs: 50 }),
    () => client.enqueue("q", null, null, { timeoutMs: 50 }),
    () => client.ackMany([{ queue: "q", id: "a" }], { timeoutMs: 50 }).then(([error]) => {
      throw error;
    }),
  ]) {
    await assert.rejects(call, { code: "DEADLINE_EXCEEDED" });
  }
  assert.deepEqual(broker.seen, []);
});

test("each key is cut out of what the broker says to its own calls", async (context) => {
  let number = 0;
  const { broker, client } = await start(context, () => `secret-${(number += 1)}`);
  for (const method of ["DeleteQueue", "EnqueueBatch", "Consume"]) {
    broker.script(method, (request, call) => {
      const said = call.metadata.get("authorization")[0];
      return refuse(status.UNAUTHENTICATED, `no such key: ${said}`, "UNAUTHENTICATED")();
    });
    const call = {
      DeleteQueue: () => client.deleteQueue("q"),
      EnqueueBatch: () => client.enqueue("q"),
      Consume: () => client.consume("q").next(),
    }[method];
    await assert.rejects(call, { message: "no such key: Bearer [redacted]" });
  }
});

// SPDX-License-Identifier: AGPL-3.0-only
// Concurrent calls share requests, each caller gets its own answer, and nobody waits for others.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";

import {
  Client,
  DeadlineExceededError,
  QueueFullError,
  ResourceExhaustedError,
} from "@fila/client";

import { take } from "../dist/esm/coalesce.js";
import { Gate, ScriptedBroker, refusal, status, types, until } from "./broker.js";

const SLOTS = 2;

async function start(context) {
  const broker = await ScriptedBroker.start(context);
  const client = new Client(broker.target, { timeoutMs: 60_000 });
  context.after(() => client.close());
  return { broker, client };
}

function sizes(broker, method = "EnqueueBatch", field = "messages") {
  return broker.requests(method).map((request) => request[field].length);
}

function enqueue(client, text, options) {
  return client.enqueue("orders", null, Buffer.from(text), options);
}

/** Occupies every slot with a request that waits at the gate. */
async function fillSlots(broker, client) {
  const gate = new Gate(broker);
  const held = [];
  for (let slot = 1; slot <= SLOTS; slot += 1) {
    held.push(enqueue(client, `held-${slot}`));
    await until(() => broker.calls("EnqueueBatch").length === slot, "the request");
  }
  return { gate, held };
}

test("a lone call goes out at once and alone", async (context) => {
  const { broker, client } = await start(context);
  for (let number = 0; number < 20; number += 1) {
    assert.match(await enqueue(client, "x"), /^x#/);
  }
  assert.deepEqual(sizes(broker), Array(20).fill(1));
});

test("a call does not wait for another one under way", async (context) => {
  const { broker, client } = await start(context);
  const { gate, held } = await fillSlots(broker, client);
  assert.deepEqual(sizes(broker), [1, 1]);
  gate.open();
  await Promise.all(held);
});

test("calls that pile up share the next request", async (context) => {
  const { broker, client } = await start(context);
  const { gate, held } = await fillSlots(broker, client);
  const names = Array.from({ length: 62 }, (_, number) => `caller-${number}`);
  const calls = [];
  for (const name of names) {
    calls.push(enqueue(client, name));
    await turn();
  }
  gate.open();
  const ids = await Promise.all(calls);
  assert.deepEqual(ids.map((id) => id.split("#")[0]), names);
  await Promise.all(held);
  assert.deepEqual(sizes(broker), [1, 1, 62]);
});

test("calls of one turn of the event loop share one request", async (context) => {
  const { broker, client } = await start(context);
  const calls = Array.from({ length: 64 }, (_, number) => enqueue(client, `${number}`));
  const ids = await Promise.all(calls);
  assert.deepEqual(ids.map((id) => Number(id.split("#")[0])), [...ids.keys()]);
  assert.deepEqual(sizes(broker), [64]);
});

test("a request holds no more than a thousand items", async (context) => {
  const { broker, client } = await start(context);
  await Promise.all(Array.from({ length: 2_500 }, () => enqueue(client, "x")));
  assert.deepEqual(sizes(broker).sort(), [1_000, 1_000, 500].sort());
});

test("acks, nacks and extensions are shared too", async (context) => {
  const { broker, client } = await start(context);
  for (const [method, field, call] of [
    ["AckBatch", "acks", (id) => client.ack("orders", id)],
    ["NackBatch", "nacks", (id) => client.nack("orders", id)],
    ["ExtendLease", "extensions", (id) => client.extend("orders", id)],
  ]) {
    const gate = new Gate(broker, method);
    const calls = [call("m-1")];
    await until(() => sizes(broker, method, field).length === 1);
    calls.push(call("m-2"));
    await until(() => sizes(broker, method, field).length === 2);
    for (let number = 0; number < 10; number += 1) {
      calls.push(call(`m-${number}`));
      await turn();
    }
    gate.open();
    await Promise.all(calls);
    assert.deepEqual(sizes(broker, method, field), [1, 1, 10]);
  }
});

test("one bad item fails alone", async (context) => {
  const { broker, client } = await start(context);
  const error = { reason: types.ErrorReason.QUEUE_FULL, message: "queue is full" };
  broker.script("EnqueueBatch", ({ messages }) => ({
    results: messages.map(({ payload }) =>
      payload.toString() === "bad" ? { error } : { messageId: payload.toString() },
    ),
  }));
  const texts = ["good-1", "bad", "good-2"];
  const found = await Promise.allSettled(texts.map((text) => enqueue(client, text)));
  assert.deepEqual(sizes(broker), [3]);
  assert.deepEqual([found[0].value, found[2].value], ["good-1", "good-2"]);
  assert.ok(found[1].reason instanceof QueueFullError);
  assert.equal(found[1].reason.message, "queue is full");
  assert.equal(found[1].reason.queue, "orders");
});

test("each caller of a failed request gets its own error", async (context) => {
  const { broker, client } = await start(context);
  broker.script("EnqueueBatch", () => {
    throw refusal(status.RESOURCE_EXHAUSTED, "too much");
  });
  const queues = ["a", "b", "c"];
  const found = await Promise.allSettled(queues.map((queue) => client.enqueue(queue)));
  const errors = found.map((outcome) => outcome.reason);
  assert.ok(errors.every((error) => error instanceof ResourceExhaustedError));
  assert.deepEqual(errors.map((error) => error.queue), queues);
  assert.equal(new Set(errors).size, 3);
});

test("a short timeout is kept inside a shared request", async (context) => {
  const { broker, client } = await start(context);
  const { gate, held } = await fillSlots(broker, client);
  const patient = [enqueue(client, "patient", { timeoutMs: 60_000 })];
  const hasty = enqueue(client, "hasty", { timeoutMs: 50 });
  await assert.rejects(hasty, (error) => {
    assert.ok(error instanceof DeadlineExceededError);
    assert.match(error.message, /this one was not sent/);
    return true;
  });
  gate.open();
  await Promise.all([...held, ...patient]);
  assert.deepEqual(sizes(broker), [1, 1, 1]);
  assert.equal(broker.requests("EnqueueBatch")[2].messages[0].payload.toString(), "patient");
});

test("a call that was sent and not answered says so", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  const [hasty, patient] = [
    // Long enough to be sent, however busy the machine.
    enqueue(client, "hasty", { timeoutMs: 2_000 }),
    enqueue(client, "patient", { timeoutMs: 60_000 }),
  ];
  await assert.rejects(hasty, /the outcome is unknown/);
  gate.open();
  assert.match(await patient, /^patient#/);
  assert.deepEqual(sizes(broker), [2]);
});

test("an aborted call that waits is never sent and disturbs nobody", async (context) => {
  const { broker, client } = await start(context);
  const { gate, held } = await fillSlots(broker, client);
  const controller = new AbortController();
  const aborted = enqueue(client, "aborted", { signal: controller.signal });
  const other = enqueue(client, "other");
  await turn();
  controller.abort();
  await assert.rejects(aborted, { name: "AbortError" });
  gate.open();
  await Promise.all([...held, other]);
  assert.deepEqual(sizes(broker), [1, 1, 1]);
});

test("aborting one call of a request under way leaves the others undisturbed", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  const controller = new AbortController();
  const aborted = enqueue(client, "aborted", { signal: controller.signal });
  const other = enqueue(client, "other");
  await until(() => broker.seen.length === 1);
  controller.abort(new Error("my own reason"));
  await assert.rejects(aborted, /my own reason/);
  gate.open();
  assert.match(await other, /^other#/);
  assert.deepEqual(sizes(broker), [2]);
});

test("a request that nobody waits for any more is cancelled", async (context) => {
  const { broker, client } = await start(context);
  let isCancelled = false;
  broker.script("EnqueueBatch", (request, call) => {
    call.on("cancelled", () => {
      isCancelled = true;
    });
    return new Promise(() => undefined);
  });
  const controller = new AbortController();
  const calls = ["a", "b"].map((text) => enqueue(client, text, { signal: controller.signal }));
  await until(() => broker.seen.length === 1);
  controller.abort();
  for (const call of calls) await assert.rejects(call, { name: "AbortError" });
  await until(() => isCancelled, "the cancellation");
});

test("an aborted signal sends nothing", async (context) => {
  const { broker, client } = await start(context);
  const signal = AbortSignal.abort();
  for (const call of [
    () => client.enqueue("orders", null, null, { signal }),
    () => client.enqueueMany([{ queue: "orders" }], { signal }),
    () => client.ack("orders", "m", { signal }),
    () => client.receive("orders", { signal }),
    () => client.listQueues({ signal }),
  ]) {
    await assert.rejects(call, { name: "AbortError" });
  }
  assert.deepEqual(broker.seen, []);
});

test("a bad argument is its caller's alone", async (context) => {
  const { broker, client } = await start(context);
  const [bad, good] = await Promise.allSettled([
    client.enqueue("orders", { a: 1 }),
    enqueue(client, "good"),
  ]);
  assert.match(String(bad.reason), /TypeError: header "a" must be a string, not number/);
  assert.match(good.value, /^good#/);
  assert.deepEqual(sizes(broker), [1]);
});

test("a batch ends before its bytes do, and a large item travels alone", () => {
  const seat = (bytes, isGone = false) => ({ item: { data: new Uint8Array(bytes) }, isGone });
  const waiting = [
    ...[seat(600_000), seat(9, true), seat(400_000), seat(100_000)],
    ...[seat(3_000_000), seat(1)],
  ];
  const lengths = () => take(waiting).map(({ item }) => item.data.length);
  assert.deepEqual(lengths(), [600_000, 400_000]);
  assert.deepEqual(lengths(), [100_000]);
  assert.deepEqual(lengths(), [3_000_000]);
  assert.deepEqual(lengths(), [1]);
  assert.deepEqual(lengths(), []);
});

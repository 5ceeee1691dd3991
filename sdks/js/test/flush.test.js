// SPDX-License-Identifier: AGPL-3.0-only
// What was promised is answered: by flushing, by closing, and within bounds.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Client, ClientClosedError, DeadlineExceededError } from "@fila/client";

import { Gate, ScriptedBroker, frame, framesThenIdle, refusal, status, until } from "./broker.js";

async function start(context, options = {}) {
  const broker = await ScriptedBroker.start(context);
  const client = new Client(broker.target, { timeoutMs: 60_000, ...options });
  context.after(() => client.close());
  return { broker, client };
}

/** Whether it has settled by the time that a few turns have passed. */
async function isSettled(promise) {
  const settled = promise.then(
    () => true,
    () => true,
  );
  return Promise.race([settled, sleep(50).then(() => false)]);
}

test("flush waits for every kind of call that was begun", async (context) => {
  const { broker, client } = await start(context);
  const methods = ["EnqueueBatch", "AckBatch", "NackBatch", "ExtendLease"];
  const calls = {
    EnqueueBatch: () => client.enqueue("orders"),
    AckBatch: () => client.ack("orders", "m"),
    NackBatch: () => client.nack("orders", "m"),
    ExtendLease: () => client.extend("orders", "m"),
  };
  for (const method of methods) {
    const gate = new Gate(broker, method);
    const call = calls[method]();
    const flushed = client.flush();
    await until(() => broker.calls(method).length === 1, method);
    assert.equal(await isSettled(flushed), false, method);
    gate.open();
    await flushed;
    await call;
  }
});

test("flush does not mind how calls end, nor those begun after it", async (context) => {
  const { broker, client } = await start(context);
  await client.flush();
  let fail;
  broker.script("AckBatch", () => new Promise((_, reject) => (fail = reject)));
  const refused = assert.rejects(client.ack("orders", "m"), /broken/);
  const flushed = [client.flush(), client.flush()];
  await until(() => fail !== undefined, "the ack");
  const gate = new Gate(broker);
  const later = client.enqueue("orders");
  fail(refusal(status.INTERNAL, "broken", "INTERNAL"));
  await Promise.all([...flushed, refused]);
  gate.open();
  await later;
});

test("flush has a deadline and can be given up", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  const call = client.enqueue("orders");
  await assert.rejects(client.flush({ timeoutMs: 20 }), DeadlineExceededError);
  const controller = new AbortController();
  const flushed = client.flush({ signal: controller.signal });
  controller.abort(new Error("enough"));
  await assert.rejects(flushed, /enough/);
  gate.open();
  await call;
});

test("close lets calls be answered that were begun before, and refuses others", async (context) => {
  const { broker, client } = await start(context);
  const gates = [new Gate(broker), new Gate(broker, "AckBatch")];
  // More than what can be under way.
  const calls = Array.from({ length: 5 }, () => client.enqueue("orders"));
  await until(() => broker.calls("EnqueueBatch").length === 1, "the request");
  calls.push(client.enqueue("orders"), client.enqueue("orders"), client.ack("orders", "m"));
  await sleep(20);
  calls.push(client.enqueue("orders"));
  const closed = client.close();
  await assert.rejects(client.enqueue("orders"), ClientClosedError);
  await assert.rejects(client.flush(), ClientClosedError);
  assert.throws(() => client.consume("orders"), ClientClosedError);
  assert.equal(await isSettled(closed), false);
  for (const gate of gates) gate.open();
  await Promise.all(calls);
  await closed;
});

test("close lets calls be repeated that were promised", async (context) => {
  const { broker, client } = await start(context, { backoff: { initialMs: 1, maximumMs: 20 } });
  let isAway = true;
  const { EnqueueBatch } = broker.scripts;
  broker.script("EnqueueBatch", (request) => {
    if (isAway) throw refusal(status.UNAVAILABLE, "away", "SHUTTING_DOWN");
    return EnqueueBatch(request);
  });
  const call = client.enqueue("orders", null, Buffer.from("x"), { idempotencyKey: "k" });
  await until(() => broker.calls("EnqueueBatch").length > 1, "a repeat");
  const closed = client.close();
  isAway = false;
  assert.match(await call, /^x#/);
  await closed;
});

test("consumers end while calls are waited for", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a", "b")));
  const gate = new Gate(broker);
  await client.consume("orders").next();
  const call = client.enqueue("orders");
  await until(() => broker.calls("EnqueueBatch").length === 1, "the request");
  const closed = client.close();
  await until(() => broker.calls("NackBatch").length === 1, "what is given back");
  gate.open();
  await Promise.all([call, closed]);
});

test("what waits to be sent is bounded, and calls wait for room", async (context) => {
  const { broker, client } = await start(context, { maxBufferedBytes: 1_000 });
  const gate = new Gate(broker);
  const payload = Buffer.alloc(600, "x");
  const calls = Array.from({ length: 6 }, () => client.enqueue("orders", null, payload));
  const sent = () => broker.requests("EnqueueBatch").flatMap(({ messages }) => messages).length;
  await until(() => sent() >= 2, "the requests");
  await sleep(50);
  assert.equal(sent(), 2);
  // One that waits can leave, by its deadline or by its signal, and leaves the others undisturbed.
  const late = client.enqueue("orders", null, payload, { timeoutMs: 20 });
  await assert.rejects(late, (error) => {
    assert.ok(error instanceof DeadlineExceededError);
    assert.match(error.message, /not sent/);
    assert.equal(error.queue, "orders");
    return true;
  });
  const controller = new AbortController();
  const aborted = client.enqueue("orders", null, payload, { signal: controller.signal });
  controller.abort();
  await assert.rejects(aborted, { name: "AbortError" });
  // Settlements do not wait behind messages.
  await client.ack("orders", "m");
  gate.open();
  const ids = await Promise.all(calls);
  assert.equal(new Set(ids).size, 6);
  assert.equal(sent(), 6);
});

test("a message that cannot be encoded takes no room", async (context) => {
  const { broker, client } = await start(context, { maxBufferedBytes: 1 });
  const gate = new Gate(broker);
  const first = client.enqueue("orders");
  const bad = assert.rejects(client.enqueue("orders", null, "text"), TypeError);
  const last = client.enqueue("orders");
  gate.open();
  await Promise.all([first, bad, last]);
});

test("bounds are checked", () => {
  assert.throws(() => new Client("127.0.0.1:1", { maxBufferedBytes: 0 }), RangeError);
  assert.throws(() => new Client("127.0.0.1:1", { closeTimeoutMs: -1 }), RangeError);
});

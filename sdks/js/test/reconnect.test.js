// SPDX-License-Identifier: AGPL-3.0-only
// A consumer outlives its connection, waits between attempts, and ends when it is told to.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Client, UnavailableError } from "@fila/client";

import { Reconnect } from "../dist/esm/consumer.js";
import { Backoff } from "../dist/esm/options.js";
import {
  ScriptedBroker,
  frame,
  framesThenIdle,
  freePort,
  idle,
  refusal,
  status,
  until,
} from "./broker.js";

const QUICK = { initialMs: 20, maximumMs: 100 };

function connect(context, target, options = {}) {
  const client = new Client(target, { timeoutMs: 60_000, backoff: QUICK, ...options });
  context.after(() => client.close());
  return client;
}

async function nextId(consumer) {
  const { done, value } = await consumer.next();
  return done ? null : value.id;
}

for (const [ending, error] of [
  ["an end without an error", null],
  ["UNAVAILABLE", refusal(status.UNAVAILABLE, "reset")],
  ["a shutdown", refusal(status.UNAVAILABLE, "bye", "SHUTTING_DOWN")],
  ["CANCELLED", refusal(status.CANCELLED, "the server is stopping")],
]) {
  test(`a stream is opened again after ${ending}`, async (context) => {
    const broker = await ScriptedBroker.start(context);
    broker.script("Consume", async function* (request, call) {
      const number = broker.calls("Consume").length;
      yield frame(`m-${number}`);
      if (number === 3) await idle(call);
      if (error !== null) throw error;
    });
    const consumer = connect(context, broker.target).consume("orders");
    const ids = [await nextId(consumer), await nextId(consumer), await nextId(consumer)];
    assert.deepEqual(ids, ["m-1", "m-2", "m-3"]);
  });
}

test("a consumer and a client survive a broker restart", async (context) => {
  const port = await freePort();
  const having = (id) => ({ port, scripts: { Consume: framesThenIdle(frame(id)) } });
  const first = await ScriptedBroker.start(context, having("before"));
  const client = connect(context, first.target);
  const consumer = client.consume("orders");
  assert.equal(await nextId(consumer), "before");
  const after = nextId(consumer);
  first.stop();
  await sleep(300); // Longer than every backoff, so that attempts fail in between.
  await ScriptedBroker.start(context, having("after"));
  assert.equal(await after, "after");
  const options = { idempotencyKey: "k" };
  assert.match(await client.enqueue("orders", null, Buffer.from("x"), options), /^x#/);
});

test("a consumer may be opened before the broker", async (context) => {
  const port = await freePort();
  const next = nextId(connect(context, `127.0.0.1:${port}`).consume("orders"));
  await sleep(300);
  await ScriptedBroker.start(context, { port, scripts: { Consume: framesThenIdle(frame("a")) } });
  assert.equal(await next, "a");
});

/** The warnings of the process meanwhile, in words. */
function warnings(context) {
  const found = [];
  const listener = ({ name, code, message }) => {
    // What is said of connections is the business of route.test.js.
    if (name === "FilaWarning" && code.startsWith("FILA_STREAM")) found.push([code, message]);
  };
  process.on("warning", listener);
  context.after(() => process.off("warning", listener));
  return found;
}

const LOST = 'the consume stream of queue "orders" is lost, trying again: ';
const FOUND = 'the consume stream of queue "orders" is there again';

test("a lost stream is one warning, and a found one another", async (context) => {
  const broker = await ScriptedBroker.start(context);
  broker.script("Consume", async function* (request, call) {
    const number = broker.calls("Consume").length;
    if (number > 1 && number < 5) throw refusal(status.UNAVAILABLE, `attempt ${number}`);
    yield frame(`m-${number}`);
    if (number === 1) throw refusal(status.UNAVAILABLE, "reset");
    await idle(call);
  });
  const found = warnings(context);
  const consumer = connect(context, broker.target).consume("orders");
  assert.deepEqual([await nextId(consumer), await nextId(consumer)], ["m-1", "m-5"]);
  await until(() => found.length === 2, "the second warning");
  assert.deepEqual(found, [
    ["FILA_STREAM_LOST", `${LOST}reset`],
    ["FILA_STREAM_FOUND", FOUND],
  ]);
  await consumer.close();
  assert.equal(found.length, 2);
});

test("a stream that was let in is found before its first message", async (context) => {
  const broker = await ScriptedBroker.start(context);
  broker.script("Consume", async function* (request, call) {
    if (broker.calls("Consume").length === 1) return;
    call.sendMetadata(call.metadata);
    yield* [];
    await idle(call);
  });
  const found = warnings(context);
  const next = nextId(connect(context, broker.target).consume("orders"));
  await until(() => found.length === 2, "the second warning");
  assert.deepEqual(found, [
    ["FILA_STREAM_LOST", `${LOST}the broker ended it`],
    ["FILA_STREAM_FOUND", FOUND],
  ]);
  void next;
});

test("a consumer on a wrong address says so", async (context) => {
  const found = warnings(context);
  void nextId(connect(context, `127.0.0.1:${await freePort()}`).consume("orders"));
  await until(() => found.length > 0, "the warning");
  await sleep(300);
  assert.equal(found.length, 1);
  assert.equal(found[0][0], "FILA_STREAM_LOST");
  assert.match(found[0][1], /ECONNREFUSED/);
});

test("a consumer on an address that answers nothing says so", async (context) => {
  const { listener } = await silent(context);
  const found = warnings(context);
  const target = `127.0.0.1:${listener.address().port}`;
  void nextId(connect(context, target, { timeoutMs: 200 }).consume("orders"));
  await until(() => found.length > 0, "the warning");
  assert.deepEqual(found, [["FILA_STREAM_LOST", `${LOST}no connection so far`]]);
});

/** Takes connections and says nothing. */
async function silent(context) {
  const sockets = [];
  const listener = createServer((socket) => void sockets.push(socket));
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  context.after(() => {
    listener.close();
    for (const socket of sockets) socket.destroy();
  });
  return { listener };
}

test("attempts are never hot", async (context) => {
  const broker = await ScriptedBroker.start(context);
  broker.script("Consume", () => {
    throw refusal(status.UNAVAILABLE, "away");
  });
  const client = connect(context, broker.target, { backoff: { initialMs: 100, maximumMs: 200 } });
  const consumer = client.consume("orders");
  const ended = nextId(consumer);
  const started = performance.now();
  await until(() => broker.calls("Consume").length >= 4, "the fourth attempt");
  await sleep(500);
  await consumer.close();
  assert.equal(await ended, null);
  // Waits are 0.1 s on average; thirty times as many would still be no loop that never waits.
  const attempts = broker.calls("Consume").length;
  assert.ok(attempts < 50 + (performance.now() - started) / 3, `${attempts} attempts`);
});

test("close ends an iteration that waits to reconnect", async (context) => {
  const backoff = { initialMs: 600_000, maximumMs: 600_000 };
  const target = `127.0.0.1:${await freePort()}`;
  const consumer = connect(context, target, { backoff }).consume("orders");
  const ended = nextId(consumer);
  await sleep(200);
  await consumer.close();
  assert.equal(await ended, null);
});

for (const isStopped of [false, true]) {
  const state = isStopped ? "wait for the broker" : "read";
  test(`closing the client ends consumers that ${state}`, async (context) => {
    const broker = await ScriptedBroker.start(context);
    broker.script("Consume", framesThenIdle());
    if (isStopped) broker.stop();
    const client = connect(context, broker.target);
    const ended = [nextId(client.consume("orders")), nextId(client.consume("invoices"))];
    await sleep(200);
    await client.close();
    assert.deepEqual(await Promise.all(ended), [null, null]);
  });
}

test("closing the client gives back what its consumers have not handed out", async (context) => {
  const broker = await ScriptedBroker.start(context);
  broker.script("Consume", framesThenIdle(frame("a", "b", "c")));
  const client = connect(context, broker.target);
  const consumer = client.consume("orders");
  assert.equal(await nextId(consumer), "a");
  await client.close();
  const nacks = broker.requests("NackBatch").flatMap((request) => request.nacks);
  assert.deepEqual(nacks.map(({ messageId, retryAfterMs }) => [messageId, retryAfterMs]), [
    ["b", 0],
    ["c", 0],
  ]);
  assert.equal(await nextId(consumer), null);
});

test("backoff doubles to its bound and uses all of the range", () => {
  const backoff = new Backoff();
  const ceilings = Array.from({ length: 8 }, (_, attempt) => backoff.delayMs(attempt, 1));
  assert.deepEqual(ceilings, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
  assert.equal(backoff.delayMs(1e9, 1), 5_000);
  assert.equal(backoff.delayMs(3, 0), 0);
  assert.equal(backoff.delayMs(3, 0.5), 400);
  for (const [initialMs, maximumMs] of [[0, 5], [-1, 5], [2, 1], [NaN, 1], [1, 2 ** 40]]) {
    assert.throws(() => new Backoff({ initialMs, maximumMs }), {
      name: "RangeError",
      message: `backoff needs 0 < initialMs <= maximumMs, got ${initialMs} and ${maximumMs}`,
    });
  }
});

test("a frame or a long life starts the backoff anew", () => {
  let now = 100;
  const reconnect = new Reconnect(new Backoff(), () => now, () => 1);
  const ended = () => {
    reconnect.opened();
    return reconnect.delayMs(new UnavailableError());
  };
  assert.ok(reconnect.isFirst);
  assert.deepEqual([ended(), ended(), ended()], [100, 200, 400]);
  assert.ok(!reconnect.isFirst);
  reconnect.received();
  assert.deepEqual([ended(), ended()], [100, 200]);
  reconnect.opened();
  now += 6_000;
  assert.equal(reconnect.delayMs(null), 100);
  const final = new TypeError("final");
  assert.throws(() => reconnect.delayMs(final), final);
});

// SPDX-License-Identifier: AGPL-3.0-only
// Batches travel through streams, and callers cannot tell but by the speed.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

import {
  Client,
  ClientClosedError,
  DeadlineExceededError,
  InternalError,
  OverloadedError,
  PermissionDeniedError,
  QueueNotFoundError,
  ResourceExhaustedError,
  ShuttingDownError,
  UnavailableError,
} from "@fila/client";

import { Gate, ScriptedBroker, refusal, refuse, status, until } from "./broker.js";

const KEY = "fk_0123456789.secret~key";

async function start(context, options = {}, broking = {}) {
  const broker = await ScriptedBroker.start(context, broking);
  const client = new Client(broker.target, { timeoutMs: 60_000, ...options });
  context.after(() => client.close());
  return { broker, client };
}

function enqueue(client, text, options) {
  return client.enqueue("orders", null, Buffer.from(text), options);
}

function many(client, text, options) {
  return client.enqueueMany([{ queue: "orders", payload: Buffer.from(text) }], options);
}

function payloads(broker) {
  return broker
    .requests("EnqueueBatch")
    .flatMap(({ messages }) => messages.map(({ payload }) => payload.toString()));
}

test("there is one pipeline for enqueues and one for settlements", async (context) => {
  const { broker, client } = await start(context, { apiKey: KEY });
  broker.script("SettleGrants", ({ settlements }) => ({
    results: settlements.map(() => ({ messages: 1 })),
  }));
  const message = { queue: "orders", id: "m", leaseToken: "t" };
  await Promise.all([
    enqueue(client, "a"),
    many(client, "b"),
    client.ack("orders", "m"),
    client.nack("orders", "m"),
    client.extend("orders", "m"),
    client.ackMany([message]),
    client.nackMany([message]),
    client.ackGrant("orders", "t"),
  ]);
  assert.equal(broker.pipelines.length, 2);
  for (const { method, metadata, pipeline } of broker.seen) {
    const isEnqueue = method === "EnqueueBatch";
    const streams = new Set(broker.calls("EnqueueBatch").map((call) => call.pipeline));
    assert.equal(streams.has(pipeline), isEnqueue);
    assert.equal(metadata.authorization, `Bearer ${KEY}`);
  }
  assert.equal(broker.seen.length, 8);
});

test("a client that sends no batch opens no pipeline", async (context) => {
  const { broker, client } = await start(context);
  broker.script("DeleteQueue", () => ({}));
  await client.deleteQueue("orders");
  await client.enqueueMany([]);
  assert.deepEqual(broker.pipelines, []);
});

test("requests are sent in order and each gets its own answer", async (context) => {
  const { broker, client } = await start(context);
  const texts = Array.from({ length: 200 }, (_, number) => `text-${number}`);
  const found = await Promise.all(texts.map((text) => many(client, text)));
  assert.deepEqual(found.map(([{ messageId }]) => messageId.split("#")[0]), texts);
  assert.deepEqual(payloads(broker), texts);
  assert.equal(broker.pipelines.length, 1);
});

test("requests overlap, and no more than sixteen are under way", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  const calls = Array.from({ length: 20 }, (_, number) => many(client, `${number}`));
  await until(() => broker.seen.length === 16);
  await sleep(100);
  assert.equal(broker.seen.length, 16);
  const late = many(client, "late", { timeoutMs: 50 });
  const [{ error }] = await late;
  assert.ok(error instanceof DeadlineExceededError);
  assert.match(error.message, /this one was not sent/);
  gate.open();
  await Promise.all(calls);
  assert.ok(!payloads(broker).includes("late"));
});

test("a refusal is its own request's and the pipeline goes on", async (context) => {
  const { broker, client } = await start(context, { apiKey: KEY });
  const refusals = {
    NOT_FOUND: ["QUEUE_NOT_FOUND", QueueNotFoundError],
    RESOURCE_EXHAUSTED: ["OVERLOADED", OverloadedError],
    PERMISSION_DENIED: ["PERMISSION_DENIED", PermissionDeniedError],
  };
  broker.script("EnqueueBatch", (request) => {
    const code = request.messages[0].payload.toString();
    if (!(code in refusals)) return broker.store(request);
    throw refusal(status[code], `no: ${KEY}`, refusals[code][0]);
  });
  for (const [code, [reason, kind]] of Object.entries(refusals)) {
    const error = await enqueue(client, code).catch((caught) => caught);
    assert.equal(error.constructor, kind);
    assert.deepEqual([error.code, error.reason, error.queue], [code, reason, "orders"]);
    assert.equal(error.message, "no: [redacted]");
    const [outcome] = await many(client, code);
    assert.equal(outcome.error.constructor, kind);
  }
  assert.match(await enqueue(client, "good"), /^good#/);
  assert.equal(broker.pipelines.length, 1);
});

test("a refusal for the moment is sent again where that is safe", async (context) => {
  const { broker, client } = await start(context, { backoff: { initialMs: 1, maximumMs: 2 } });
  let refused = 0;
  broker.script("EnqueueBatch", (request) => {
    refused += 1;
    if (refused < 3) throw refusal(status.UNAVAILABLE, "bye", "SHUTTING_DOWN");
    return broker.store(request);
  });
  assert.match(await enqueue(client, "a", { idempotencyKey: "k" }), /^a#/);
  assert.equal(refused, 3);
  refused = 0;
  await assert.rejects(enqueue(client, "a"), ShuttingDownError);
  assert.equal(refused, 1);
});

test("a pipeline that breaks fails what is under way, and the next is opened", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  const calls = [many(client, "a"), many(client, "b")];
  await until(() => broker.seen.length === 2);
  broker.pipelines[0].call.emit("error", refusal(status.UNAVAILABLE, "gone", "SHUTTING_DOWN"));
  for (const [{ error }] of await Promise.all(calls)) {
    assert.equal(error.constructor, ShuttingDownError);
    assert.equal(error.message, "gone");
  }
  gate.open();
  assert.match(await enqueue(client, "c"), /^c#/);
  assert.deepEqual(payloads(broker), ["a", "b", "c"]);
  assert.equal(broker.pipelines.length, 2);
});

test("what was not written goes to the next pipeline", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  const calls = Array.from({ length: 20 }, (_, number) => many(client, `${number}`));
  await until(() => broker.seen.length === 16);
  broker.pipelines[0].call.emit("error", refusal(status.UNAVAILABLE, "gone"));
  gate.open();
  const found = (await Promise.all(calls)).map(([{ error }]) => error);
  assert.ok(found.slice(0, 16).every((error) => error instanceof UnavailableError));
  assert.deepEqual(found.slice(16), [null, null, null, null]);
  assert.deepEqual(payloads(broker), Array.from({ length: 20 }, (_, number) => `${number}`));
});

test("an enqueue with a key survives a break, one without is not repeated", async (context) => {
  const { broker, client } = await start(context, { backoff: { initialMs: 1, maximumMs: 2 } });
  const gate = new Gate(broker);
  const safe = enqueue(client, "safe", { idempotencyKey: "k" });
  await until(() => broker.seen.length === 1);
  const unsafe = enqueue(client, "unsafe");
  await until(() => broker.seen.length === 2);
  for (const socket of broker.sockets) socket.destroy();
  await assert.rejects(unsafe, UnavailableError);
  gate.open();
  assert.match(await safe, /^safe#/);
  assert.deepEqual(payloads(broker), ["safe", "unsafe", "safe"]);
});

test("a pipeline that the broker ends is no failure of the next request", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Receive", () => ({}));
  for (let number = 1; number <= 5; number += 1) {
    assert.match(await enqueue(client, "x"), /^x#/);
    assert.equal(broker.pipelines.length, number);
    broker.pipelines.at(-1).call.emit("error", refusal(status.UNAVAILABLE, "", "SHUTTING_DOWN"));
    // A call that is answered has seen all that the broker sent before; once more, because the end
    // of a call and that of a stream pass through a different number of rounds in the client.
    await client.receive("orders");
    await client.receive("orders");
  }
});

test("a pipeline that ends with requests under way left them open", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  const call = enqueue(client, "a");
  await until(() => broker.seen.length === 1);
  broker.pipelines[0].call.end();
  await assert.rejects(call, UnavailableError);
  gate.open();
});

test("a broker without pipelines gets unary calls, and is asked once", async (context) => {
  const { broker, client } = await start(context, {}, { hasPipelines: false });
  const asked = [];
  broker.server.addService(
    {
      pipeline: {
        path: "/fila.v1.FilaService/Pipeline",
        requestStream: true,
        responseStream: true,
        requestDeserialize: (bytes) => bytes,
        requestSerialize: (value) => value,
        responseSerialize: (value) => value,
        responseDeserialize: (bytes) => bytes,
      },
    },
    {
      pipeline: (call) => {
        asked.push(call);
        call.emit("error", refusal(status.UNIMPLEMENTED, "what?"));
      },
    },
  );
  const calls = Array.from({ length: 5 }, (_, number) => many(client, `${number}`));
  for (const [{ error }] of await Promise.all(calls)) assert.equal(error, null);
  await enqueue(client, "alone");
  await client.ack("orders", "m");
  assert.deepEqual(payloads(broker).sort(), ["0", "1", "2", "3", "4", "alone"]);
  assert.equal(asked.length, 1);
  assert.ok(broker.seen.every(({ timeMs }) => timeMs !== null));
});

test("a caller leaves at its deadline and disturbs nobody", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  // Long enough to be sent, however busy the machine.
  const [hasty, patient] = [many(client, "hasty", { timeoutMs: 2_000 }), many(client, "patient")];
  const [{ error }] = await hasty;
  assert.ok(error instanceof DeadlineExceededError);
  assert.deepEqual([error.code, error.queue], ["DEADLINE_EXCEEDED", "orders"]);
  assert.match(error.message, /the outcome is unknown/);
  gate.open();
  const [{ messageId }] = await patient;
  assert.match(messageId, /^patient#/);
  assert.equal(broker.pipelines.length, 1);
});

test("an aborted caller leaves and disturbs nobody", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  const controller = new AbortController();
  const calls = [many(client, "a", { signal: controller.signal }), many(client, "b")];
  await until(() => broker.seen.length === 2);
  controller.abort(new Error("my own reason"));
  await assert.rejects(calls[0], /my own reason/);
  gate.open();
  const [{ messageId }] = await calls[1];
  assert.match(messageId, /^b#/);
});

test("an answer that fits no request ends the pipeline", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  for (const answer of [{ ack: {} }, {}]) {
    const call = enqueue(client, "a");
    await until(() => broker.pipelines.at(-1)?.isCancelled === false);
    const pipeline = broker.pipelines.at(-1);
    pipeline.call.write(answer);
    await assert.rejects(call, InternalError);
    await until(() => pipeline.isCancelled);
  }
  gate.open();
  assert.match(await enqueue(client, "b"), /^b#/);
});

test("an answer with too few results is an error of each item", async (context) => {
  const { broker, client } = await start(context);
  broker.script("EnqueueBatch", () => ({ results: [] }));
  await assert.rejects(enqueue(client, "a"), InternalError);
});

test("a large request travels alone", async (context) => {
  const { broker, client } = await start(context);
  await client.enqueue("orders", null, Buffer.alloc(1 << 20));
  await client.enqueue("orders", null, Buffer.alloc(1 << 19));
  const [large, small] = broker.seen.map(({ pipeline }) => pipeline);
  assert.equal(large, undefined);
  assert.notEqual(small, undefined);
});

test("a client that takes less than a batch uses no pipelines", async (context) => {
  const { broker, client } = await start(context, { maxMessageBytes: 100 });
  await assert.rejects(enqueue(client, "x".repeat(200)), ResourceExhaustedError);
  await enqueue(client, "a");
  assert.deepEqual(broker.pipelines, []);
});

test("a pipeline that nobody uses is ended", async (context) => {
  const { broker, client } = await start(context);
  await enqueue(client, "a");
  await until(() => broker.pipelines[0].isEnded);
  await enqueue(client, "b");
  assert.equal(broker.pipelines.length, 2);
});

test("closing ends pipelines and whoever waits for them", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  const calls = Array.from({ length: 20 }, () => many(client, "x"));
  await until(() => broker.seen.length === 16);
  const settled = Promise.all(calls);
  await client.close();
  for (const [{ error }] of await settled) assert.equal(error.constructor, ClientClosedError);
  await until(() => broker.pipelines[0].isCancelled || broker.pipelines[0].isEnded);
  gate.open();
  await client.close();
});

test("an idle pipeline keeps no process alive", async (context) => {
  const { broker } = await start(context);
  broker.script("AckBatch", refuse(status.NOT_FOUND, "", "MESSAGE_NOT_FOUND"));
  const program = `
    import { Client } from "@fila/client";
    const client = new Client("${broker.target}");
    await client.enqueue("orders");
    await client.ack("orders", "m").catch((error) => console.log(error.reason));`;
  const options = { cwd: new URL(".", import.meta.url), timeout: 60_000 };
  const args = ["--input-type=module", "-e", program];
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, options);
  assert.deepEqual([stdout, stderr], ["MESSAGE_NOT_FOUND\n", ""]);
  assert.equal(broker.pipelines.length, 2);
});

// SPDX-License-Identifier: AGPL-3.0-only
// What producers send arrives as they meant it, in order, and never twice unless that is harmless.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, EnqueueResult, InternalError, UnavailableError } from "@fila/client";

import { Gate, ScriptedBroker, refusal, refuse, status, types, until } from "./broker.js";

const QUICK = { initialMs: 5, maximumMs: 20 };

async function start(context, options = {}) {
  const broker = await ScriptedBroker.start(context);
  const client = new Client(broker.target, { timeoutMs: 60_000, backoff: QUICK, ...options });
  context.after(() => client.close());
  return { broker, client };
}

/** Fails a method a few times, then answers as before. */
function failing(broker, method, times, ...reasons) {
  const answer = broker.scripts[method];
  let left = times;
  broker.script(method, (request) => {
    left -= 1;
    if (left >= 0) throw refusal(...reasons);
    return answer(request);
  });
}

test("every field arrives", async (context) => {
  const { broker, client } = await start(context);
  const deliverAt = new Date("2031-02-03T04:05:06.789Z");
  await client.enqueue("orders", { tenant: "acme", ü: "☃" }, new Uint8Array([0, 255]), {
    fairnessKey: "acme",
    weight: 7,
    throttleKeys: ["mail", "sms"],
    throttleCost: 3,
    deliverAt,
    ttlMs: Number.MAX_SAFE_INTEGER,
    idempotencyKey: "k",
  });
  const [message] = broker.requests("EnqueueBatch")[0].messages;
  assert.deepEqual(message, {
    queue: "orders",
    headers: new Map([["tenant", "acme"], ["ü", "☃"]]),
    payload: Buffer.from([0, 255]),
    fairnessKey: "acme",
    weight: 7,
    throttleKeys: ["mail", "sms"],
    throttleCost: 3,
    delayMs: 0,
    deliverAt,
    ttlMs: Number.MAX_SAFE_INTEGER,
    idempotencyKey: "k",
  });
});

test("what is left out is left to the broker", async (context) => {
  const { broker, client } = await start(context);
  await client.enqueue("orders");
  const [message] = broker.requests("EnqueueBatch")[0].messages;
  assert.deepEqual(message, types.EnqueueRequest.create({ queue: "orders" }));
});

test("a header may have any name", async (context) => {
  const { broker, client } = await start(context);
  const headers = JSON.parse('{"__proto__": "a", "constructor": "b", "": "c"}');
  await client.enqueue("orders", headers);
  const [message] = broker.requests("EnqueueBatch")[0].messages;
  assert.deepEqual([...message.headers.entries()].sort(), Object.entries(headers).sort());
});

const NO_PAYLOAD = "payload must be bytes, { text } or { json }";

test("a bad argument is named and never sent", async (context) => {
  const { broker, client } = await start(context);
  const date = new Date(NaN);
  for (const [expected, queue, headers, payload, options] of [
    ["queue must be a string, not number", 5],
    ["queue must be a string, not undefined", undefined],
    [`${NO_PAYLOAD}, not a string`, "q", null, "text"],
    [`${NO_PAYLOAD}, not another object`, "q", null, new Uint16Array(1)],
    [`${NO_PAYLOAD}, not another object`, "q", null, {}],
    ["text must be a string, not number", "q", null, { text: 5 }],
    ["text holds a lone surrogate, which UTF-8 cannot express", "q", null, { text: "\udc00" }],
    ["json cannot express a value of type undefined", "q", null, { json: undefined }],
    ["headers must be an object, not string", "q", "x"],
    ['header "a" must be a string, not undefined', "q", { a: undefined }],
    ['header "a" holds a lone surrogate, which UTF-8 cannot express', "q", { a: "\ud800" }],
    ["fairnessKey must be a string, not number", "q", null, null, { fairnessKey: 1 }],
    ["throttleKeys must be a list, not one string", "q", null, null, { throttleKeys: "mail" }],
    ["an entry of throttleKeys must be a string, not number", "q", null, null,
      { throttleKeys: [1] }],
    ["weight must be a whole number from 0 to 4294967295, got -1", "q", null, null,
      { weight: -1 }],
    ["weight must be a whole number from 0 to 4294967295, got 4294967296", "q", null, null,
      { weight: 2 ** 32 }],
    ["delayMs must be a whole number from 0 to 9007199254740991, got 1.5", "q", null, null,
      { delayMs: 1.5 }],
    ["ttlMs must be a number, not string", "q", null, null, { ttlMs: "5" }],
    ["deliverAt must be a valid Date", "q", null, null, { deliverAt: date }],
  ]) {
    await assert.rejects(client.enqueue(queue, headers, payload, options), (error) => {
      assert.equal(error.message, expected);
      return error instanceof TypeError || error instanceof RangeError;
    });
  }
  assert.deepEqual(broker.seen, []);
});

test("values of headers and payloads stay out of errors", async (context) => {
  const { client } = await start(context);
  const error = await client.enqueue("q", { a: Symbol("private") }).catch((found) => found);
  assert.ok(error instanceof TypeError);
  assert.doesNotMatch(error.stack, /private/);
});

test("an encoding failure does not spoil the next message", async (context) => {
  const { broker, client } = await start(context);
  const detached = new Uint8Array(8);
  structuredClone(detached.buffer, { transfer: [detached.buffer] });
  await client.enqueue("orders", {}, detached).catch(() => undefined);
  const large = Buffer.alloc(3 << 20, "x");
  assert.ok(await client.enqueue("orders", {}, large));
  assert.match(await client.enqueue("orders", {}, Buffer.from("y")), /^y#/);
  const payloads = broker.requests("EnqueueBatch").map(({ messages }) => messages[0].payload);
  assert.equal(payloads.at(-2).length, large.length);
});

// --- Retries -------------------------------------------------------------------------------------

test("an enqueue without an idempotency key is sent once", async (context) => {
  const { broker, client } = await start(context);
  failing(broker, "EnqueueBatch", 99, status.UNAVAILABLE, "away");
  await assert.rejects(client.enqueue("orders"), UnavailableError);
  const [result] = await client.enqueueMany([{ queue: "orders" }]);
  assert.ok(result.error instanceof UnavailableError);
  assert.equal(broker.seen.length, 2);
});

test("an enqueue with an idempotency key is sent again if the broker is away", async (context) => {
  const { broker, client } = await start(context);
  failing(broker, "EnqueueBatch", 3, status.UNAVAILABLE, "away");
  const options = { idempotencyKey: "k" };
  assert.match(await client.enqueue("orders", {}, Buffer.from("x"), options), /^x#/);
  assert.equal(broker.seen.length, 4);
});

test("only UNAVAILABLE is tried again", async (context) => {
  const { broker, client } = await start(context);
  for (const code of ["DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "CANCELLED"]) {
    const before = broker.seen.length;
    broker.script("EnqueueBatch", refuse(status[code], "no"));
    await assert.rejects(client.enqueue("orders", null, null, { idempotencyKey: "k" }));
    assert.equal(broker.seen.length, before + 1, code);
  }
});

test("attempts end with the deadline, with the error of the last one", async (context) => {
  const { broker, client } = await start(context);
  broker.script("EnqueueBatch", refuse(status.UNAVAILABLE, "away"));
  const options = { idempotencyKey: "k", timeoutMs: 3_000 };
  const error = await client.enqueue("orders", null, null, options).catch((found) => found);
  assert.ok(error.retryable, error.stack);
  assert.ok(broker.seen.length > 1);
});

test("an abort ends the wait between attempts", async (context) => {
  const { broker, client } = await start(context, {
    backoff: { initialMs: 60_000, maximumMs: 60_000 },
    timeoutMs: 600_000,
  });
  broker.script("EnqueueBatch", refuse(status.UNAVAILABLE, "away"));
  const controller = new AbortController();
  const options = { idempotencyKey: "k", signal: controller.signal };
  const call = client.enqueue("orders", null, null, options);
  await until(() => broker.seen.length === 1);
  controller.abort();
  await assert.rejects(call, { name: "AbortError" });
});

test("reads and config are tried again, other admin calls are not", async (context) => {
  const { broker, client } = await start(context);
  const again = {
    ListQueues: () => client.listQueues(),
    GetStats: () => client.stats("q"),
    Peek: () => client.peek("q"),
    Explain: () => client.explain("q"),
    GetConfig: () => client.getConfig("k"),
    SetConfig: () => client.setConfig("k", "v"),
    ListConfig: () => client.listConfig(),
    ListApiKeys: () => client.listApiKeys(),
    GetAcl: () => client.getAcl("k"),
  };
  for (const [method, call] of Object.entries(again)) {
    broker.script(method, () => ({}));
    failing(broker, method, 1, status.UNAVAILABLE, "away");
    await call();
    assert.equal(broker.calls(method).length, 2, method);
  }
  const once = {
    CreateQueue: () => client.createQueue("q"),
    DeleteQueue: () => client.deleteQueue("q"),
    Redrive: () => client.redrive("q.dlq"),
    Purge: () => client.purge("q"),
    DeleteConfig: () => client.deleteConfig("k"),
    CreateApiKey: () => client.createApiKey("k"),
    Receive: () => client.receive("q"),
    AckBatch: () => client.ack("q", "m"),
    NackBatch: () => client.nack("q", "m"),
    ExtendLease: () => client.extend("q", "m"),
  };
  for (const [method, call] of Object.entries(once)) {
    broker.script(method, refuse(status.UNAVAILABLE, "away"));
    await assert.rejects(call(), UnavailableError);
    assert.equal(broker.calls(method).length, 1, method);
  }
});

// --- Many ----------------------------------------------------------------------------------------

function* numbered(count, options = {}) {
  for (let number = 0; number < count; number += 1) {
    yield { queue: "orders", payload: Buffer.from(`${number}`), ...options };
  }
}

test("many messages are split by count, in order, with one result each", async (context) => {
  const { broker, client } = await start(context);
  const results = await client.enqueueMany(numbered(2_500));
  const sizes = broker.requests("EnqueueBatch").map(({ messages }) => messages.length);
  assert.deepEqual(sizes, [1_000, 1_000, 500]);
  assert.equal(results.length, 2_500);
  assert.ok(results.every((result) => result instanceof EnqueueResult));
  assert.ok(results.every((result, number) => result.unwrap() === `${number}#${number + 1}`));
});

test("many messages are split by bytes, and a large one travels alone", async (context) => {
  const { broker, client } = await start(context);
  const sizes = [400_000, 400_000, 400_000, 3_000_000, 10];
  await client.enqueueMany(sizes.map((size) => ({ queue: "q", payload: Buffer.alloc(size) })));
  const found = broker.requests("EnqueueBatch");
  assert.deepEqual(
    found.map(({ messages }) => messages.map(({ payload }) => payload.length)),
    [[400_000, 400_000], [400_000], [3_000_000], [10]],
  );
});

test("no messages need no request", async (context) => {
  const { broker, client } = await start(context);
  assert.deepEqual(await client.enqueueMany([]), []);
  assert.deepEqual(await client.ackMany([]), []);
  assert.deepEqual(broker.seen, []);
});

test("requests go out one after the other", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  const call = client.enqueueMany(numbered(3_000));
  await until(() => broker.seen.length === 1);
  gate.open();
  await call;
  const first = broker.requests("EnqueueBatch").map(({ messages }) => messages[0].payload);
  assert.deepEqual(first.map(String), ["0", "1000", "2000"]);
});

test("nothing is sent after a request that failed as a whole", async (context) => {
  const { broker, client } = await start(context);
  const store = broker.scripts.EnqueueBatch;
  broker.script("EnqueueBatch", (request) => {
    if (broker.seen.length === 2) throw refusal(status.INTERNAL, "disk", "STORAGE_FAILED");
    return store(request);
  });
  const results = await client.enqueueMany(numbered(3_000));
  assert.equal(broker.seen.length, 2);
  assert.deepEqual([...new Set(results.slice(0, 1000).map(({ error }) => error))], [null]);
  assert.deepEqual(results[1500].error.message, "disk");
  assert.match(results[2500].error.message, /^not sent, because an earlier request .*: disk$/);
  for (const { error, messageId } of results.slice(1000)) {
    assert.ok(error instanceof InternalError);
    assert.deepEqual([error.name, error.queue, messageId], ["StorageFailedError", "orders", ""]);
  }
  assert.throws(() => results[1500].unwrap(), /disk/);
});

test("a request of many is tried again only if all its messages have keys", async (context) => {
  const { broker, client } = await start(context);
  failing(broker, "EnqueueBatch", 1, status.UNAVAILABLE, "away");
  const keyed = Array.from(numbered(3), (message, n) => ({ ...message, idempotencyKey: `${n}` }));
  const results = await client.enqueueMany(keyed);
  assert.deepEqual(results.map(({ error }) => error), [null, null, null]);
  assert.equal(broker.seen.length, 2);
  failing(broker, "EnqueueBatch", 1, status.UNAVAILABLE, "away");
  const [first] = await client.enqueueMany([...keyed, { queue: "orders" }]);
  assert.ok(first.error instanceof UnavailableError);
  assert.equal(broker.seen.length, 3);
});

test("a duplicate is reported, and a refused message has its own error", async (context) => {
  const { broker, client } = await start(context);
  const error = { reason: types.ErrorReason.HOOK_FAILED, message: "no" };
  const answer = { results: [{ messageId: "a", duplicate: true }, { error }, { messageId: "b" }] };
  broker.script("EnqueueBatch", () => answer);
  const results = await client.enqueueMany(numbered(3));
  assert.deepEqual(results.map((result) => result.duplicate), [true, false, false]);
  assert.deepEqual(results.map((result) => result.messageId), ["a", "", "b"]);
  assert.equal(results[1].error.name, "HookFailedError");
});

test("an abort ends a call of many between its requests", async (context) => {
  const { broker, client } = await start(context);
  const controller = new AbortController();
  broker.script("EnqueueBatch", () => new Promise(() => undefined));
  const call = client.enqueueMany(numbered(3_000), { signal: controller.signal });
  await until(() => broker.seen.length === 1);
  controller.abort();
  await assert.rejects(call, { name: "AbortError" });
  assert.equal(broker.seen.length, 1);
});

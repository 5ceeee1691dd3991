// SPDX-License-Identifier: AGPL-3.0-only
// A consumer hands out what it was sent, and gives back what it did not hand out.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Client, LeaseExpiredError, PermissionDeniedError, QueueNotFoundError } from "@fila/client";

import {
  ScriptedBroker,
  arrived,
  frame,
  framesThenIdle,
  idle,
  message,
  refusal,
  refuse,
  status,
  types,
  until,
} from "./broker.js";

async function start(context, options = {}) {
  const broker = await ScriptedBroker.start(context);
  const client = new Client(broker.target, { timeoutMs: 60_000, ...options });
  context.after(() => client.close());
  return { broker, client };
}

/** Messages that the client gave back, without an attempt being counted. */
function released(broker) {
  const nacks = broker.requests("NackBatch").flatMap((request) => request.nacks);
  for (const nack of nacks) {
    assert.equal(nack.retryAfterMs, 0);
    assert.equal(nack.leaseToken, `token-of-${nack.messageId}`);
    assert.equal(nack.queue, "orders");
  }
  return nacks.map((nack) => nack.messageId);
}

async function nextId(consumer) {
  const { done, value } = await consumer.next();
  return done ? null : value.id;
}

async function rest(consumer) {
  const ids = [];
  for await (const found of consumer) ids.push(found.id);
  return ids;
}

test("messages arrive in order across frames", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a", "b"), frame("c")));
  const consumer = client.consume("orders", {
    maxInFlight: 7,
    batchSize: 3,
    visibilityTimeoutMs: 9,
  });
  assert.equal(consumer[Symbol.asyncIterator](), consumer);
  const ids = [];
  for await (const found of consumer) {
    ids.push(found.id);
    if (ids.length === 3) break;
  }
  assert.deepEqual(ids, ["a", "b", "c"]);
  assert.deepEqual(broker.requests("Consume"), [
    { queue: "orders", maxInFlight: 7, maxBatch: 3, visibilityTimeoutMs: 9 },
  ]);
});

test("by default messages come in frames and prefetch is bounded", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a")));
  assert.equal(await nextId(client.consume("orders")), "a");
  assert.deepEqual(broker.requests("Consume"), [
    { queue: "orders", maxInFlight: 64, maxBatch: 32, visibilityTimeoutMs: 0 },
  ]);
});

test("a message has everything that the broker sent", async (context) => {
  const { broker, client } = await start(context);
  const enqueuedAt = new Date("2030-01-02T03:04:05.678Z");
  const leaseExpiresAt = new Date("2030-01-02T03:05:05.678Z");
  const headers = new Map([["tenant", "acme"], ["__proto__", "x"]]);
  const raw = message("m", { headers, payload: Buffer.from([0, 255]) });
  raw.metadata = {
    ...raw.metadata,
    fairnessKey: "acme",
    weight: 3,
    throttleKeys: ["mail"],
    attemptCount: 2,
    lastError: "boom",
    failures: [{ failedAt: enqueuedAt, cause: types.FailureCause.NACK, error: "boom" }],
  };
  raw.timestamps = { enqueuedAt, leaseExpiresAt };
  broker.script("Receive", () => ({ messages: [raw, { id: "bare" }] }));
  const [found, bare] = await client.receive("orders", { maxMessages: 2 });
  assert.deepEqual(Object.entries(found.headers), [...headers]);
  assert.deepEqual({ ...found, headers: {} }, {
    id: "m",
    queue: "orders",
    headers: {},
    payload: Buffer.from([0, 255]),
    fairnessKey: "acme",
    weight: 3,
    throttleKeys: ["mail"],
    attemptCount: 2,
    leaseToken: "token-of-m",
    lastError: "boom",
    failures: [{ failedAt: enqueuedAt, cause: "nack", error: "boom" }],
    enqueuedAt,
    leaseExpiresAt,
  });
  assert.deepEqual([bare.queue, bare.enqueuedAt, bare.payload.length], ["", null, 0]);
});

test("settling a message names its delivery", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a", "b")));
  const consumer = client.consume("orders");
  const first = (await consumer.next()).value;
  const second = (await consumer.next()).value;
  const end = await first.extend(5_000);
  assert.equal(end.getTime(), 1_900_000_000_000);
  assert.equal(first.leaseExpiresAt, end);
  await first.ack();
  await second.nack("boom", { retryAfterMs: 10, throttleKey: "mail" });
  const named = (id) => ({ queue: "orders", messageId: id, leaseToken: `token-of-${id}` });
  const [{ extensions }] = broker.requests("ExtendLease");
  assert.deepEqual(extensions, [{ ...named("a"), extendMs: 5_000 }]);
  assert.deepEqual(broker.requests("AckBatch")[0].acks, [named("a")]);
  const backpressure = { error: "boom", retryAfterMs: 10, throttleKey: "mail" };
  assert.deepEqual(broker.requests("NackBatch")[0].nacks, [
    { ...named("b"), ...backpressure, deadLetter: false },
  ]);
});

test("a nack without options is a failure, not backpressure", async (context) => {
  const { broker, client } = await start(context);
  await client.nack("orders", "m");
  await client.nack("orders", "m", "boom", { leaseToken: "t" });
  const [plain, named] = broker.requests("NackBatch").map(({ nacks }) => nacks[0]);
  assert.deepEqual(plain, types.NackRequest.create({ queue: "orders", messageId: "m" }));
  assert.deepEqual([named.error, named.leaseToken, named.retryAfterMs], ["boom", "t", undefined]);
});

test("a nack may say that trying again would not help", async (context) => {
  const { broker, client } = await start(context);
  await client.nack("orders", "m", "broken", { deadLetter: true });
  const [{ nacks }] = broker.requests("NackBatch");
  const hopeless = { queue: "orders", messageId: "m", error: "broken", deadLetter: true };
  assert.deepEqual(nacks, [types.NackRequest.create(hopeless)]);
});

test("many messages are settled with one outcome each", async (context) => {
  const { broker, client } = await start(context);
  const error = { reason: types.ErrorReason.LEASE_EXPIRED, message: "too late" };
  broker.script("AckBatch", ({ acks }) => ({
    results: acks.map(({ messageId }) => (messageId === "b" ? { error } : {})),
  }));
  broker.script("Receive", () => frame("a", "b", "c"));
  const messages = await client.receive("orders", { maxMessages: 3 });
  const [first, second, third] = await client.ackMany(messages);
  assert.deepEqual([first, third], [null, null]);
  assert.ok(second instanceof LeaseExpiredError);
  assert.deepEqual([second.queue, second.messageId], ["orders", "b"]);
  assert.deepEqual(await client.nackMany(messages, "boom"), [null, null, null]);
  const [{ nacks }] = broker.requests("NackBatch");
  assert.deepEqual(nacks.map((nack) => nack.error), ["boom", "boom", "boom"]);
});

test("receive returns what there is and waits longer than the broker", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Receive", () => ({}));
  const options = { maxMessages: 5, waitMs: 200_000, visibilityTimeoutMs: 7 };
  assert.deepEqual(await client.receive("orders", options), []);
  const [{ request, timeMs }] = broker.seen;
  assert.deepEqual(request, { queue: "orders", ...options });
  assert.ok(timeMs > 230_000 && timeMs <= 265_000, `${timeMs}`);
});

test("an unknown queue is thrown by the first iteration", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", refuse(status.NOT_FOUND, "no queue", "QUEUE_NOT_FOUND"));
  const consumer = client.consume("nowhere");
  await assert.rejects(consumer.next(), (error) => {
    assert.ok(error instanceof QueueNotFoundError);
    assert.deepEqual([error.message, error.queue], ["no queue", "nowhere"]);
    return true;
  });
  assert.equal(await nextId(consumer), null);
  await consumer.close();
  assert.equal(broker.seen.length, 1);
});

test("an error in the middle comes after the messages before it", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", async function* () {
    yield frame("a", "b");
    throw refusal(status.PERMISSION_DENIED, "revoked", "PERMISSION_DENIED");
  });
  const consumer = client.consume("orders");
  assert.deepEqual([await nextId(consumer), await nextId(consumer)], ["a", "b"]);
  await assert.rejects(consumer.next(), PermissionDeniedError);
});

test("frames are read as they come", async (context) => {
  const { broker, client } = await start(context);
  // Each larger than what HTTP/2 lets a peer send before it is read, so that the broker sees reads.
  const payload = Buffer.alloc(1 << 20);
  let written = 0;
  broker.script("Consume", async function* (request, call) {
    for (let number = 0; number < 6; number += 1) {
      yield { messages: [message(`m-${number}`, { payload })] };
      while (call.writableLength > 0 && !call.cancelled) await sleep(1);
      written += 1;
    }
    await idle(call);
  });
  const consumer = client.consume("orders");
  assert.equal(await nextId(consumer), "m-0");
  await until(() => written === 6, "the last frame");
  for (let number = 1; number < 6; number += 1) {
    assert.equal(await nextId(consumer), `m-${number}`);
  }
});

test("what was read before a connection was lost is handed out", async (context) => {
  const { broker, client } = await start(context, { backoff: { initialMs: 20, maximumMs: 20 } });
  let opened = 0;
  broker.script("Consume", async function* (request, call) {
    opened += 1;
    if (opened > 1) return idle(call);
    yield frame("a", "b", "c");
    throw refusal(status.UNAVAILABLE, "gone");
  });
  const consumer = client.consume("orders");
  assert.equal(await nextId(consumer), "a");
  await until(() => opened === 2, "the second stream");
  assert.deepEqual([await nextId(consumer), await nextId(consumer)], ["b", "c"]);
});

test("leaving the loop ends the stream and gives back what nobody has seen", async (context) => {
  const { broker, client } = await start(context);
  const script = framesThenIdle(frame("a", "b", "c"), frame("d"));
  broker.script("Consume", script);
  const consumer = client.consume("orders");
  for await (const found of consumer) {
    assert.equal(found.id, "a");
    await arrived(broker, client);
    break;
  }
  assert.deepEqual(released(broker), ["b", "c", "d"]);
  await until(() => script.ended, "the end of the stream");
  assert.deepEqual(await rest(consumer), []);
});

test("an error in the loop's body gives messages back too", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a", "b")));
  const run = async () => {
    for await (const found of client.consume("orders")) throw new Error(`cannot do ${found.id}`);
  };
  await assert.rejects(run, /cannot do a/);
  assert.deepEqual(released(broker), ["b"]);
});

test("closing a consumer is harmless twice and at any time", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a", "b")));
  const unused = client.consume("orders");
  await unused.close();
  assert.deepEqual(await rest(unused), []);
  assert.deepEqual(broker.seen, []);
  const consumer = client.consume("orders");
  await consumer.next();
  await Promise.all([consumer.close(), consumer.close(), consumer[Symbol.asyncDispose]()]);
  await consumer.close();
  assert.deepEqual(released(broker), ["b"]);
});

test("messages that cannot be given back do not hold up the close", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a", "b")));
  broker.script("NackBatch", refuse(status.INTERNAL, "broken"));
  for await (const found of client.consume("orders")) {
    assert.equal(found.id, "a");
    break;
  }
  broker.script("NackBatch", () => new Promise(() => undefined));
  for await (const found of client.consume("orders")) {
    assert.equal(found.id, "a");
    break;
  }
  const [first, second] = broker.calls("NackBatch");
  assert.ok(first.timeMs <= 1_010 && second.timeMs <= 1_010, "no more than a second");
});

test("close ends an iteration that waits for a message", async (context) => {
  const { broker, client } = await start(context);
  const script = framesThenIdle(frame("a"));
  broker.script("Consume", script);
  const consumer = client.consume("orders");
  await consumer.next();
  const waiting = rest(consumer);
  await sleep(20);
  await consumer.close();
  assert.deepEqual(await waiting, []);
  await until(() => script.ended, "the end of the stream");
  assert.deepEqual(released(broker), []);
});

test("several loops share one consumer", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a", "b"), frame("c", "d")));
  const consumer = client.consume("orders");
  const found = [];
  const loop = async () => {
    for await (const next of consumer) found.push(next.id);
  };
  const loops = [loop(), loop(), loop()];
  await until(() => found.length === 4, "the fourth message");
  await consumer.close();
  await Promise.all(loops);
  assert.deepEqual(found.sort(), ["a", "b", "c", "d"]);
});

test("a next() that nobody awaits any more loses no message", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a", "b", "c")));
  const consumer = client.consume("orders");
  const pending = [consumer.next(), consumer.next(), consumer.next()];
  const results = await Promise.all(pending);
  assert.deepEqual(results.map(({ value }) => value.id), ["a", "b", "c"]);
});

test("an aborted signal ends the consumer, gives messages back and throws", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a", "b")));
  const controller = new AbortController();
  const consumer = client.consume("orders", { signal: controller.signal });
  const loop = async () => {
    for await (const found of consumer) {
      assert.equal(found.id, "a");
      controller.abort();
    }
  };
  await assert.rejects(loop, { name: "AbortError" });
  assert.deepEqual(released(broker), ["b"]);
  assert.equal(await nextId(consumer), null);
  const waiting = new AbortController();
  broker.script("Consume", framesThenIdle());
  const next = client.consume("orders", { signal: waiting.signal }).next();
  await until(() => broker.calls("Consume").length === 2, "the second stream");
  waiting.abort(new Error("enough"));
  await assert.rejects(next, /enough/);
  assert.throws(() => client.consume("orders", { signal: controller.signal }), {
    name: "AbortError",
  });
});

test("a frame that cannot be read ends the iteration", async (context) => {
  const { broker, client } = await start(context);
  const original = types.ConsumeResponse.encode;
  const nonsense = Buffer.from([0x0a, 0x7f, 0x01]);
  types.ConsumeResponse.encode = () => ({ finish: () => nonsense });
  context.after(() => {
    types.ConsumeResponse.encode = original;
  });
  broker.script("Consume", framesThenIdle(frame("a")));
  await assert.rejects(client.consume("orders").next(), {
    name: "InternalError",
    message: "the broker sent a frame that cannot be read",
  });
});

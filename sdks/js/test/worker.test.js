// SPDX-License-Identifier: AGPL-3.0-only
// A worker settles by what its handler did, and keeps leases meanwhile.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Backpressure, DeadLetter } from "@fila/client";

import { frame, idle, leased, message, refusal, status, types, until } from "./broker.js";
import { QUIET, acked, latch, nacked, start } from "./work.js";

/** Runs a worker until so many events have come; gives these. */
async function events(client, count, handler, options = {}) {
  const found = [];
  const onEvent = (event) => void found.push(event);
  const worker = client.worker("orders", handler, { onEvent, ...options });
  const run = worker.run(QUIET);
  await until(() => found.length >= count, `event ${count}`);
  await worker.stop();
  await run;
  return found;
}

test("a handler that returns acks", async (context) => {
  const { broker, client } = await start(context, frame("a"), frame("b"));
  const handled = [];
  const found = await events(client, 2, async (received, { signal }) => {
    await sleep(1);
    handled.push(received.id);
    assert.ok(signal instanceof AbortSignal && !signal.aborted);
  });
  assert.deepEqual(handled, ["a", "b"]);
  assert.deepEqual(acked(broker).sort(), ["a", "b"]);
  assert.deepEqual(found.map(({ kind }) => kind), ["acked", "acked"]);
  for (const { message: about, seconds, error } of found) {
    assert.ok(handled.includes(about.id) && seconds > 0);
    assert.equal(error, undefined);
  }
  assert.deepEqual(broker.requests("Consume"), [
    { queue: "orders", maxInFlight: 20, maxBatch: 32, visibilityTimeoutMs: 0 },
  ]);
});

const text = "x".repeat(10_000);
for (const [name, thrown, kind, expected] of [
  ["an error", new RangeError("unlucky"), "nacked", { error: "RangeError: unlucky" }],
  ["no error at all", "a text \ud800", "nacked", { error: "a text \ufffd" }],
  ["a long error", new Error(text), "nacked", { error: `Error: ${text}`.slice(0, 4_096) }],
  ["nothing", undefined, "nacked", { error: "undefined" }],
  ["what has no words", Object.create(null), "nacked", { error: "a failure that has no words" }],
  [
    "backpressure",
    new Backpressure({ retryAfterMs: 70, throttleKey: "mail", reason: "busy" }),
    "put_off",
    { error: "busy", retryAfterMs: 70, throttleKey: "mail" },
  ],
  [
    "backpressure without a key",
    new Backpressure({ retryAfterMs: 0 }),
    "put_off",
    { retryAfterMs: 0 },
  ],
  [
    "a dead letter",
    new DeadLetter("broken"),
    "dead_lettered",
    { error: "broken", deadLetter: true },
  ],
]) {
  test(`a handler that throws ${name}`, async (context) => {
    const { broker, client } = await start(context, frame("a"));
    const [event] = await events(client, 1, () => {
      throw thrown;
    });
    assert.equal(event.kind, kind);
    assert.equal(event.error, thrown);
    const named = { queue: "orders", messageId: "a", leaseToken: "token-of-a" };
    assert.deepEqual(nacked(broker), [types.NackRequest.create({ ...named, ...expected })]);
    assert.deepEqual(acked(broker), []);
  });
}

test("a long error of other letters is cut between letters", async (context) => {
  const { broker, client } = await start(context, frame("a"));
  await events(client, 1, () => Promise.reject("\u{1f600}".repeat(2_000)));
  assert.equal(nacked(broker)[0].error, "\u{1f600}".repeat(1_024));
});

test("what handlers throw is checked where it is made", () => {
  assert.throws(() => new Backpressure({}), TypeError);
  assert.throws(() => new Backpressure({ retryAfterMs: -1 }), RangeError);
  assert.throws(() => new Backpressure({ retryAfterMs: 1, throttleKey: 5 }), TypeError);
  assert.throws(() => new DeadLetter(5), TypeError);
  assert.equal(new DeadLetter("broken").name, "DeadLetter");
});

test("a handler that settles by itself has the last word", async (context) => {
  const { broker, client } = await start(context, frame("a"), frame("b"), frame("c"), frame("d"));
  let count = 0;
  const found = await events(client, 1, async (received) => {
    if (received.id === "a") await received.ack();
    if (received.id === "b") await received.nack("mine");
    if (received.id === "c") {
      await client.ackMany([received]);
      throw new Error("too late");
    }
    count += 1;
    if (received.id === "d") await until(() => count === 3, "the others");
  }, { concurrency: 4 });
  assert.deepEqual(found.map(({ kind, message: { id } }) => [kind, id]), [["acked", "d"]]);
  assert.deepEqual(acked(broker).sort(), ["a", "c", "d"]);
  assert.deepEqual(nacked(broker).map(({ error }) => error), ["mine"]);
});

test("so many handlers run at a time and no more", async (context) => {
  const ids = Array.from({ length: 20 }, (_, number) => `m-${number}`);
  const { client } = await start(context, frame(...ids));
  const gate = latch();
  let running = 0;
  let most = 0;
  const handler = async () => {
    running += 1;
    most = Math.max(most, running);
    if (running === 3) sleep(20).then(gate.open);
    await gate.opened;
    await sleep(1);
    running -= 1;
  };
  await events(client, 20, handler, { concurrency: 3, prefetch: 1 });
  assert.equal(most, 3);
});

test("prefetch is twice what handlers have, and never less than that", async (context) => {
  const { broker, client } = await start(context, frame());
  for (const options of [
    { concurrency: 3 },
    { concurrency: 3, prefetch: 1 },
    { concurrency: 3, batchSize: 50 },
    { concurrency: 3, prefetch: 11, visibilityTimeoutMs: 7_000 },
  ]) {
    const worker = client.worker("orders", () => undefined, options);
    const seen = broker.calls("Consume").length;
    const run = worker.run(QUIET);
    await until(() => broker.calls("Consume").length > seen, "the stream");
    await worker.stop();
    await run;
  }
  const asked = broker.requests("Consume");
  assert.deepEqual(asked.map(({ maxInFlight }) => maxInFlight), [6, 3, 300, 11]);
  assert.deepEqual(asked.map(({ maxBatch }) => maxBatch), [32, 32, 50, 32]);
  assert.equal(asked[3].visibilityTimeoutMs, 7_000);
});

test("a batch is what is there, and is acked by one call", async (context) => {
  const { broker, client } = await start(context, frame("a", "b", "c", "d", "e"));
  const batches = [];
  const handler = (messages) => {
    assert.ok(Array.isArray(messages));
    batches.push(messages.map(({ id }) => id));
  };
  const found = await events(client, 5, handler, { concurrency: 1, batchSize: 3 });
  assert.deepEqual(batches, [["a", "b", "c"], ["d", "e"]]);
  assert.deepEqual(found.map(({ kind, message: { id } }) => `${kind} ${id}`).sort(), [
    "acked a",
    "acked b",
    "acked c",
    "acked d",
    "acked e",
  ]);
  assert.equal(broker.calls("AckBatch").length, 2);
});

test("what a batch did not settle itself has the batch's outcome", async (context) => {
  const { broker, client } = await start(context, frame("a", "b", "c"));
  const handler = async ([first]) => {
    await first.ack();
    throw new DeadLetter("no");
  };
  const found = await events(client, 2, handler, { concurrency: 1, batchSize: 10 });
  assert.deepEqual(found.map(({ kind }) => kind), ["dead_lettered", "dead_lettered"]);
  assert.deepEqual(acked(broker), ["a"]);
  const deadLettered = nacked(broker).map(({ messageId, deadLetter }) => [messageId, deadLetter]);
  assert.deepEqual(deadLettered, [["b", true], ["c", true]]);
});

test("a batch of one message is a list, too", async (context) => {
  const { client } = await start(context, frame("a"));
  let handled;
  const handler = (messages) => {
    handled = messages.map(({ id }) => id);
  };
  await events(client, 1, handler, { batchSize: 1 });
  assert.deepEqual(handled, ["a"]);
});

test("middleware runs around the handler, outermost first", async (context) => {
  const { broker, client } = await start(context, frame("a"));
  const steps = [];
  const layer = (name) => async (subject, next, { signal }) => {
    steps.push(`${name} ${subject.id} ${signal.aborted}`);
    try {
      return await next();
    } catch (error) {
      steps.push(`${name} saw ${error.message}`);
      throw name === "outer" ? new DeadLetter(`${error.message}, hopeless`) : error;
    }
  };
  const handler = () => {
    steps.push("handler");
    throw new Error("boom");
  };
  await events(client, 1, handler, { middleware: [layer("outer"), layer("inner")] });
  const inwards = ["outer a false", "inner a false", "handler"];
  assert.deepEqual(steps, [...inwards, "inner saw boom", "outer saw boom"]);
  assert.equal(nacked(broker)[0].error, "boom, hopeless");
});

test("leases are extended while a handler runs, and not longer", async (context) => {
  const { broker, client } = await start(context, leased("t", 4_000, "a"));
  const extensions = () => broker.calls("SettleGrants").length;
  const handler = () => until(() => extensions() >= 2, "the second extension");
  await events(client, 1, handler);
  assert.deepEqual(acked(broker), ["a"]);
  assert.equal(extensions(), 2);
});

test("a handler that is too slow has failed, and keeps its place", async (context) => {
  const { broker, client } = await start(context, frame("a", "b"));
  const found = [];
  const gate = latch();
  let reason;
  const handler = async ({ id }, { signal }) => {
    if (id === "b") return;
    await once(signal, "abort");
    reason = signal.reason;
    await gate.opened;
    throw new Error("what it gives is ignored");
  };
  const worker = client.worker("orders", handler, {
    ...{ concurrency: 1, prefetch: 2, handlerTimeoutMs: 50 },
    onEvent: (event) => void found.push(event),
  });
  const run = worker.run(QUIET);
  await until(() => found.length === 2, "the nack");
  assert.deepEqual(found.map(({ kind }) => kind), ["timed_out", "nacked"]);
  assert.deepEqual(nacked(broker).map(({ error }) => error), ["handler timed out after 0.05 s"]);
  assert.deepEqual([reason.name, found[0].error], ["TimeoutError", reason]);
  await sleep(50);
  assert.deepEqual(acked(broker), []);
  gate.open();
  await until(() => found.length === 3, "the other message");
  assert.deepEqual(acked(broker), ["b"]);
  await worker.stop();
  await run;
  assert.equal(nacked(broker).length, 1);
});

test("settling waits for nobody, and is bounded", async (context) => {
  const ids = Array.from({ length: 8 }, (_, number) => `m-${number}`);
  const { broker, client } = await start(context, frame(...ids));
  const gate = latch();
  broker.script("AckBatch", async ({ acks }) => {
    await gate.opened;
    return { results: acks.map(() => ({})) };
  });
  let handled = 0;
  const handler = () => void (handled += 1);
  const options = { concurrency: 1, prefetch: 4 };
  const found = events(client, 8, handler, options);
  await until(() => handled === 4, "handlers without an answer");
  await sleep(50);
  assert.equal(handled, 4);
  gate.open();
  await found;
  assert.equal(handled, 8);
});

test("a settlement that fails is an event and a warning, and no more", async (context) => {
  const { broker, client } = await start(context, frame("a"), frame("b"));
  const error = { reason: types.ErrorReason.LEASE_EXPIRED, message: "too late" };
  broker.script("AckBatch", ({ acks }) => ({
    results: acks.map(({ messageId }) => (messageId === "a" ? { error } : {})),
  }));
  const warned = once(process, "warning");
  const found = await events(client, 2, () => undefined, { concurrency: 1 });
  const [failed] = found.filter(({ kind }) => kind === "settle_failed");
  assert.deepEqual([failed.message.id, failed.error.name], ["a", "LeaseExpiredError"]);
  const [warning] = await warned;
  assert.deepEqual([warning.name, warning.code], ["FilaWarning", "FILA_SETTLE_FAILED"]);
  assert.match(warning.message, /message a of queue "orders" was not settled: too late/);
  assert.deepEqual(acked(broker), ["a", "b"]);
});

for (const [how, onEvent] of [
  ["throws", () => {
    throw new Error("oops");
  }],
  ["rejects", async () => {
    throw new Error("oops");
  }],
]) {
  test(`an event handler that ${how} changes nothing`, async (context) => {
    const { broker, client } = await start(context, frame("a"), frame("b"));
    const warned = once(process, "warning");
    const worker = client.worker("orders", () => undefined, { onEvent });
    const run = worker.run(QUIET);
    await until(() => acked(broker).length === 2, "the second ack");
    await worker.stop();
    await run;
    const [warning] = await warned;
    assert.deepEqual([warning.code, warning.message], [
      "FILA_EVENT_HANDLER_FAILED",
      "onEvent failed: Error: oops",
    ]);
  });
}

test("a broker that goes away in the middle is waited for", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", async function* (request, call) {
    const number = broker.calls("Consume").length;
    if (number === 2) throw refusal(status.UNAVAILABLE, "away");
    yield frame(`m-${number}`);
    if (number === 1) throw refusal(status.UNAVAILABLE, "reset");
    await idle(call);
  });
  const found = await events(client, 2, () => sleep(20));
  assert.deepEqual(found.map(({ message: { id } }) => id), ["m-1", "m-3"]);
});

test("two workers of one client do not disturb each other", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", async function* ({ queue }, call) {
    yield { messages: [message(`of ${queue}`, { queue })] };
    await idle(call);
  });
  const handled = [];
  const handler = ({ id }) => void handled.push(id);
  const [first, second] = ["orders", "bills"].map((queue) => client.worker(queue, handler));
  const runs = [first.run(QUIET), second.run(QUIET)];
  await until(() => handled.length === 2, "both messages");
  await first.stop();
  await second.stop();
  await Promise.all(runs);
  assert.deepEqual(handled.sort(), ["of bills", "of orders"]);
});

test("options are checked", async (context) => {
  const { client } = await start(context);
  for (const options of [
    { concurrency: 0 },
    { concurrency: 1.5 },
    { batchSize: 0 },
    { prefetch: -1 },
    { handlerTimeoutMs: -1 },
    { graceMs: NaN },
  ]) {
    assert.throws(() => client.worker("orders", () => undefined, options), RangeError);
  }
  assert.throws(() => client.worker("orders"), TypeError);
  assert.throws(() => client.worker(5, () => undefined), TypeError);
});

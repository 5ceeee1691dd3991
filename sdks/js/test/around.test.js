// SPDX-License-Identifier: AGPL-3.0-only
// What is around the calls: a queue that has to be there, a broker that has to answer, leases of
// many messages, payloads that are text or JSON, and batches of a consumer.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Client,
  DeadlineExceededError,
  LeaseExpiredError,
  QueueAlreadyExistsError,
  QueueNotFoundError,
  UnavailableError,
  UnimplementedError,
} from "@fila/client";

import { ScriptedBroker, frame, framesThenIdle, freePort, leased, message } from "./broker.js";
import { refusal, refuse, status, types, until } from "./broker.js";

const QUICK = { initialMs: 1, maximumMs: 20 };
const EXISTS = [status.ALREADY_EXISTS, 'queue "orders" exists', "QUEUE_ALREADY_EXISTS"];

async function start(context) {
  const broker = await ScriptedBroker.start(context);
  const client = new Client(broker.target, { timeoutMs: 60_000, backoff: QUICK });
  context.after(() => client.close());
  return { broker, client };
}

// --- ensureQueue ---------------------------------------------------------------------------------

test("a missing queue is created", async (context) => {
  const { broker, client } = await start(context);
  broker.script("CreateQueue", () => ({ deadLetterQueue: "orders.dlq" }));
  assert.equal(await client.ensureQueue("orders", { maxAttempts: 3 }), "orders.dlq");
  assert.equal(broker.seen.length, 1);
  assert.equal(broker.seen[0].request.config.maxAttempts, 3);
});

test("a queue with the settings that were given is fine as it is", async (context) => {
  const { broker, client } = await start(context);
  broker.script("CreateQueue", refuse(...EXISTS));
  const config = { maxAttempts: 3, retryDelayMs: 70, onHookError: types.HookErrorPolicy.REJECT };
  broker.script("GetStats", () => ({ config: types.QueueConfig.create(config) }));
  for (const settings of [
    undefined,
    { maxAttempts: 3, retryDelayMs: undefined },
    { onHookError: "reject", defaultTtlMs: 0, onEnqueueScript: "" },
  ]) {
    assert.equal(await client.ensureQueue("orders", settings), "orders.dlq");
  }
  assert.equal(broker.requests("GetStats")[0].maxKeys, 1);
  assert.equal(broker.calls("UpdateQueue").length, 0);
});

test("settings that differ are named with both values, and nothing is changed", async (context) => {
  const { broker, client } = await start(context);
  broker.script("CreateQueue", refuse(...EXISTS));
  const onEnqueueScript = "x".repeat(300);
  broker.script("GetStats", () => ({ config: types.QueueConfig.create({ maxAttempts: 3 }) }));
  await assert.rejects(
    client.ensureQueue("orders", { maxAttempts: 5, onEnqueueScript, retryDelayMs: 0 }),
    (error) => {
      assert.ok(error instanceof QueueAlreadyExistsError);
      assert.match(
        error.message,
        /^queue "orders" exists with other settings: onEnqueueScript is "" and not "x{59}\.\.\.", /,
      );
      assert.match(error.message, /, maxAttempts is 3 and not 5; updateQueue changes them$/);
      assert.deepEqual(
        [error.queue, error.code, error.reason],
        ["orders", "ALREADY_EXISTS", "QUEUE_ALREADY_EXISTS"],
      );
      return true;
    },
  );
  assert.deepEqual(broker.seen.map(({ method }) => method), ["CreateQueue", "GetStats"]);
});

test("a queue that is deleted between the two calls is created again, once", async (context) => {
  const { broker, client } = await start(context);
  broker.script("GetStats", refuse(status.NOT_FOUND, "gone", "QUEUE_NOT_FOUND"));
  broker.script("CreateQueue", () => {
    if (broker.calls("CreateQueue").length === 1) throw refusal(...EXISTS);
    return { deadLetterQueue: "orders.dlq" };
  });
  assert.equal(await client.ensureQueue("orders"), "orders.dlq");
  broker.script("CreateQueue", refuse(...EXISTS));
  await assert.rejects(client.ensureQueue("orders"), QueueNotFoundError);
  assert.equal(broker.calls("CreateQueue").length, 4);
});

test("any other failure is the caller's", async (context) => {
  const { broker, client } = await start(context);
  broker.script("CreateQueue", refuse(status.UNAVAILABLE, "away"));
  await assert.rejects(client.ensureQueue("orders"), UnavailableError);
  await assert.rejects(client.ensureQueue("orders", { maxAttempt: 3 }), TypeError);
  assert.equal(broker.seen.length, 1);
});

// --- ping and waitReady --------------------------------------------------------------------------

test("a ping says how long the answer took", async (context) => {
  const { client } = await start(context);
  const ms = await client.ping();
  assert.ok(ms > 0 && ms < 60_000, `${ms}`);
});

test("a broker that is not serving is unavailable", async (context) => {
  const { broker, client } = await start(context);
  for (const answer of [[], [0x08, 0], [0x08, 2], [0x12, 1, 65, 0x08, 3]]) {
    broker.script("Check", () => Buffer.from(answer));
    await assert.rejects(client.ping(), (error) => {
      assert.ok(error instanceof UnavailableError);
      assert.equal(error.message, "the broker is not serving");
      return true;
    });
  }
  broker.script("Check", () => Buffer.from([0x12, 1, 65, 0x08, 1]));
  await client.ping();
});

test("what waits for a broker goes on when it serves", async (context) => {
  const port = await freePort();
  const client = new Client(`127.0.0.1:${port}`, { timeoutMs: 60_000, backoff: QUICK });
  context.after(() => client.close());
  const ready = client.waitReady();
  await assert.rejects(client.ping(), UnavailableError);
  const broker = await ScriptedBroker.start(context, { port });
  await ready;
  broker.script("Check", () => {
    const isServing = broker.calls("Check").length > 4;
    return Buffer.from([0x08, isServing ? 1 : 2]);
  });
  await client.waitReady();
});

test("who waited in vain is told why", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Check", () => Buffer.from([0x08, 2]));
  await assert.rejects(client.waitReady({ timeoutMs: 3_000 }), (error) => {
    assert.ok(error instanceof DeadlineExceededError);
    assert.equal(error.message, "the broker is not ready: the broker is not serving");
    return true;
  });
  assert.ok(broker.calls("Check").length > 1);
  broker.script("Check", refuse(status.UNIMPLEMENTED, "no health"));
  await assert.rejects(client.waitReady(), UnimplementedError);
  broker.script("Check", () => new Promise(() => undefined));
  await assert.rejects(client.waitReady({ signal: AbortSignal.timeout(20) }), /timeout/);
});

// --- extendMany ----------------------------------------------------------------------------------

test("many leases are extended by one request, each with its own outcome", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Receive", () => leased("t", 60_000, "a", "b", "c"));
  const messages = await client.receive("orders", { maxMessages: 3 });
  const end = new Date(1_900_000_000_000);
  const error = { reason: types.ErrorReason.LEASE_EXPIRED, message: "over" };
  broker.script("ExtendLease", () => ({
    results: [{ leaseExpiresAt: end }, { error }, { leaseExpiresAt: end }],
  }));
  const before = messages[1].leaseExpiresAt;
  const outcomes = await client.extendMany(messages, { ms: 5_000 });
  assert.deepEqual([outcomes[0], outcomes[2]], [end, end]);
  assert.ok(outcomes[1] instanceof LeaseExpiredError);
  assert.equal(outcomes[1].messageId, "b");
  assert.deepEqual(messages.map(({ leaseExpiresAt }) => leaseExpiresAt), [end, before, end]);
  const [{ extensions }] = broker.requests("ExtendLease");
  assert.deepEqual(
    extensions.map(({ messageId, leaseToken, extendMs }) => [messageId, leaseToken, extendMs]),
    ["a", "b", "c"].map((id) => [id, "t", 5_000]),
  );
});

test("what names a message can be extended with others", async (context) => {
  const { broker, client } = await start(context);
  const [end] = await client.extendMany([{ queue: "orders", id: "a", leaseToken: "" }]);
  assert.ok(end instanceof Date);
  assert.equal(broker.requests("ExtendLease")[0].extensions[0].extendMs, 0);
  assert.deepEqual(await client.extendMany([]), []);
});

// --- Text and JSON -------------------------------------------------------------------------------

const ODD = '\ufeffgrüße "\u{1f600}"\0';

test("text and JSON travel as UTF-8, without a header", async (context) => {
  const { broker, client } = await start(context);
  await client.enqueue("orders", null, { text: ODD });
  await client.enqueue("orders", null, { json: { a: [1, "ü"], b: undefined } });
  const results = await client.enqueueMany([
    { queue: "orders", payload: { text: "" } },
    { queue: "orders", payload: { json: null } },
  ]);
  assert.equal(results.length, 2);
  const sent = broker.requests("EnqueueBatch").flatMap(({ messages }) => messages);
  const texts = sent.map(({ payload }) => payload.toString());
  assert.deepEqual(texts, [ODD, '{"a":[1,"ü"]}', "", "null"]);
  for (const { headers } of sent) assert.equal(headers.size, 0);
});

test("a message shows its payload as text and as JSON", async (context) => {
  const { broker, client } = await start(context);
  const payloads = [ODD, '{"a":[1,"ü"]}', "17"];
  broker.script("Receive", () => ({
    messages: payloads.map((text, index) => message(`${index}`, { payload: Buffer.from(text) })),
  }));
  const messages = await client.receive("orders");
  assert.deepEqual(messages.map(({ text }) => text), payloads);
  assert.deepEqual(messages[1].json(), { a: [1, "ü"] });
  assert.equal(messages[2].json(), 17);
  assert.throws(() => messages[0].json(), {
    name: "SyntaxError",
    message: 'the payload of message 0 of queue "orders" is not JSON',
  });
});

test("a payload that is not UTF-8 is an error that names the message", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Receive", () => ({ messages: [message("a", { payload: Buffer.from([0xff]) })] }));
  const [found] = await client.receive("orders");
  const wrong = {
    name: "TypeError",
    message: 'the payload of message a of queue "orders" is not UTF-8',
  };
  assert.throws(() => found.text, wrong);
  assert.throws(() => found.json(), wrong);
});

// --- Batches of a consumer -----------------------------------------------------------------------

test("batches are lists of what is there, and leaving gives the rest back", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a", "b", "c", "d", "e"), frame("f")));
  const seen = [];
  for await (const messages of client.consume("orders").batches(2)) {
    seen.push(messages.map(({ id }) => id));
    if (seen.length === 2) break;
  }
  assert.deepEqual(seen, [["a", "b"], ["c", "d"]]);
  const nacks = broker.requests("NackBatch").flatMap((request) => request.nacks);
  assert.deepEqual(nacks.map(({ messageId }) => messageId), ["e", "f"]);
});

test("a batch does not wait for company", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a")));
  const consumer = client.consume("orders");
  const batches = consumer.batches();
  const { value } = await batches.next();
  assert.deepEqual(value.map(({ id }) => id), ["a"]);
  const pending = batches.next();
  await consumer.close();
  assert.deepEqual(await pending, { done: true, value: undefined });
});

test("batches fail as the consumer does", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", refuse(status.NOT_FOUND, "no queue", "QUEUE_NOT_FOUND"));
  await assert.rejects(client.consume("orders").batches(5).next(), QueueNotFoundError);
  broker.script("Consume", framesThenIdle());
  const controller = new AbortController();
  const consumer = client.consume("orders", { signal: controller.signal });
  const pending = consumer.batches(5).next();
  await until(() => broker.calls("Consume").length === 2);
  controller.abort();
  await assert.rejects(pending, { name: "AbortError" });
  for (const max of [0, -1, 1.5, "5"]) {
    assert.throws(() => consumer.batches(max), /^(Range|Type)Error: max must be/);
  }
});

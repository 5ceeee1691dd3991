// SPDX-License-Identifier: AGPL-3.0-only
// What every call carries, how a client is set up, and what is left of it after close.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { inspect, promisify } from "node:util";

import {
  Client,
  ClientClosedError,
  DeadlineExceededError,
  NewApiKey,
  ResourceExhaustedError,
  UnauthenticatedError,
  UnavailableError,
} from "@fila/client";

import { grpcOptions } from "../dist/esm/connection.js";
import { Backoff } from "../dist/esm/options.js";
import { Gate, ScriptedBroker, frame, framesThenIdle, freePort, message } from "./broker.js";
import { refuse, status, until } from "./broker.js";

const KEY = "fk_0123456789.secret~key";

async function start(context, options = {}, broking = {}) {
  const broker = await ScriptedBroker.start(context, broking);
  const client = new Client(broker.target, options);
  context.after(() => client.close());
  return { broker, client };
}

function assertAbout(timeMs, expected) {
  // gRPC rounds what it sends, and a busy machine takes its time.
  assert.ok(timeMs > expected - 4_000 && timeMs < expected + 1_000, `${timeMs} of ${expected}`);
}

test("unary calls have a deadline of five seconds", async (context) => {
  const { broker, client } = await start(context, {}, { hasPipelines: false });
  await client.enqueue("orders");
  await client.enqueueMany([{ queue: "orders" }]);
  await client.ack("orders", "m");
  for (const { timeMs } of broker.seen) assertAbout(timeMs, 5_000);
  assert.equal(broker.seen.length, 3);
});

test("a call can choose its own deadline", async (context) => {
  const { broker, client } = await start(
    context,
    { timeoutMs: 400_000 },
    { hasPipelines: false },
  );
  broker.script("DeleteQueue", () => ({}));
  const options = { timeoutMs: 200_000 };
  await client.enqueue("orders");
  await client.enqueue("orders", null, null, options);
  await client.ack("orders", "m", options);
  await client.enqueueMany([{ queue: "orders" }], options);
  await client.deleteQueue("orders", options);
  const [first, ...others] = broker.seen.map(({ timeMs }) => timeMs);
  assertAbout(first, 400_000);
  for (const timeMs of others) assertAbout(timeMs, 200_000);
  await client.deleteQueue("orders", { timeoutMs: Infinity });
});

test("a stream has no deadline", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a")));
  await client.consume("orders").next();
  assert.equal(broker.calls("Consume")[0].timeMs, null);
});

test("a client enforces the deadline itself", async (context) => {
  const { broker, client } = await start(context);
  broker.script("DeleteQueue", () => new Promise(() => undefined));
  const call = client.deleteQueue("orders", { timeoutMs: 100 });
  await assert.rejects(call, (error) => {
    assert.ok(error instanceof DeadlineExceededError);
    assert.deepEqual([error.queue, error.retryable], ["orders", true]);
    return true;
  });
});

test("a deadline that has passed is exceeded", async (context) => {
  const { broker, client } = await start(context);
  for (const timeoutMs of [0, -1]) {
    await assert.rejects(client.enqueue("q", null, null, { timeoutMs }), DeadlineExceededError);
    await assert.rejects(client.deleteQueue("q", { timeoutMs }), DeadlineExceededError);
  }
  await assert.rejects(client.enqueue("q", null, null, { timeoutMs: NaN }), TypeError);
  assert.deepEqual(broker.seen, []);
});

test("a call under way can be aborted, and the broker hears of it", async (context) => {
  const { broker, client } = await start(context, { timeoutMs: 60_000 });
  let isCancelled = false;
  broker.script("Receive", (request, call) => {
    call.on("cancelled", () => {
      isCancelled = true;
    });
    return new Promise(() => undefined);
  });
  const controller = new AbortController();
  const call = client.receive("orders", { waitMs: 60_000, signal: controller.signal });
  await until(() => broker.seen.length === 1);
  controller.abort();
  await assert.rejects(call, { name: "AbortError" });
  await until(() => isCancelled, "the cancellation");
});

test("a signal has one listener, and none once its calls are over", async (context) => {
  const { broker, client } = await start(context, { timeoutMs: 60_000 });
  const gate = new Gate(broker);
  const { signal } = new AbortController();
  const calls = Array.from({ length: 50 }, () => client.enqueue("q", null, null, { signal }));
  const consumer = client.consume("orders", { signal });
  assert.equal(getEventListeners(signal, "abort").length, 1);
  gate.open();
  await Promise.all(calls);
  assert.equal(getEventListeners(signal, "abort").length, 1);
  await consumer.close();
  assert.equal(getEventListeners(signal, "abort").length, 0);
});

test("nobody there is unavailable", async (context) => {
  const client = new Client(`127.0.0.1:${await freePort()}`);
  context.after(() => client.close());
  await assert.rejects(client.enqueue("orders"), (error) => {
    assert.ok(error instanceof UnavailableError, error.stack);
    return error.retryable;
  });
});

// --- The API key ---------------------------------------------------------------------------------

test("the API key is sent with calls and streams, and only if there is one", async (context) => {
  const { broker, client } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a")));
  await client.enqueue("orders");
  assert.ok(!("authorization" in broker.seen[0].metadata));
  const keyed = new Client(broker.target, { apiKey: KEY });
  context.after(() => keyed.close());
  await keyed.enqueue("orders");
  await keyed.consume("orders").next();
  const found = broker.seen.slice(1).map(({ metadata }) => metadata.authorization);
  assert.deepEqual(found, [`Bearer ${KEY}`, `Bearer ${KEY}`]);
});

test("calls name the SDK and its version", async (context) => {
  const { broker, client } = await start(context);
  await client.enqueue("orders");
  assert.match(broker.seen[0].metadata["user-agent"], /^fila-js\/0\.1\.0 grpc-node-js/);
});

function everythingShownOf(error) {
  const shown = inspect(error, { depth: 9, showHidden: true });
  return [shown, String(error), error.stack, JSON.stringify(error)].join("\n");
}

test("the API key is not shown by errors or by the client", async (context) => {
  const { broker, client } = await start(context, { apiKey: KEY });
  const text = `key ${KEY} is not valid, really: ${KEY}`;
  for (const method of ["EnqueueBatch", "GetConfig", "Consume"]) {
    broker.script(method, refuse(status.UNAUTHENTICATED, text, "UNAUTHENTICATED"));
  }
  for (const call of [
    () => client.enqueue("orders"),
    () => client.getConfig("key"),
    () => client.consume("orders").next(),
  ]) {
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof UnauthenticatedError);
      assert.equal(error.message, "key [redacted] is not valid, really: [redacted]");
      assert.ok(!everythingShownOf(error).includes(KEY), everythingShownOf(error));
      return true;
    });
  }
  const [{ error }] = await client.enqueueMany([{ queue: "orders" }]);
  assert.ok(!everythingShownOf(error).includes(KEY));
  assert.ok(!inspect(client, { depth: 9, showHidden: true }).includes(KEY));
});

test("the secret of a new key is there, but not in what is printed", () => {
  const key = new NewApiKey("id", KEY);
  assert.equal(key.secret, KEY);
  assert.equal(inspect(key), "NewApiKey { keyId: 'id', secret: [redacted] }");
});

test("a malformed API key is refused without being shown", () => {
  for (const apiKey of ["", "with space", "new\nline", "schlüssel", "nul\0", 5]) {
    assert.throws(() => new Client("127.0.0.1:1", { apiKey }), {
      name: "TypeError",
      message: "apiKey must be printable ASCII without spaces, and not empty",
    });
  }
});

// --- Settings ------------------------------------------------------------------------------------

test("a target that is no address is named", () => {
  for (const target of [
    ...["", "localhost", "localhost:", ":5555", "localhost:http", "localhost:0"],
    ...["localhost:65536", "http://localhost:5555", "::1:5555", "localhost:-1"],
  ]) {
    assert.throws(() => new Client(target), {
      name: "RangeError",
      message: `target "${target}" is not host:port, for example "127.0.0.1:5555"`,
    });
  }
  assert.throws(() => new Client(5555), {
    message: "target must be a string or a list of them, not number",
  });
  assert.throws(() => new Client([5555]), {
    message: "an address of target must be a string, not number",
  });
  assert.throws(() => new Client([]), { message: "target names no address" });
});

test("a target that is an address is taken", async () => {
  for (const target of [
    ...[undefined, "localhost:5555", "10.0.0.1:1", "[::1]:5555", "dns:///broker:5555"],
    ...["unix:/run/fila", "a:1,b:2", "a:1, [::1]:2", ["a:1", "dns:///b:2"]],
  ]) {
    await new Client(target).close();
  }
});

test("a timeout must be positive", () => {
  for (const timeoutMs of [0, -1, NaN]) {
    assert.throws(() => new Client(undefined, { timeoutMs }), {
      message: `timeoutMs must be positive, got ${timeoutMs}`,
    });
  }
});

test("channel options say what the design asks", () => {
  const backoff = new Backoff({ initialMs: 200, maximumMs: 3_000 });
  const found = grpcOptions({ maxMessageBytes: 7, tls: { serverName: "b" } }, backoff);
  assert.equal(found["grpc.max_send_message_length"], 7);
  assert.equal(found["grpc.max_receive_message_length"], 7);
  assert.equal(found["grpc.keepalive_time_ms"], 20_000);
  assert.equal(found["grpc.keepalive_timeout_ms"], 5_000);
  assert.equal(found["grpc.keepalive_permit_without_calls"], 1);
  assert.equal(found["grpc.enable_retries"], 0);
  assert.equal(found["grpc.client_idle_timeout_ms"], 2 ** 31 - 1);
  assert.equal(found["grpc.initial_reconnect_backoff_ms"], 200);
  assert.equal(found["grpc.max_reconnect_backoff_ms"], 3_000);
  assert.equal(found["grpc.ssl_target_name_override"], "b");
  const defaults = grpcOptions({}, backoff);
  assert.equal(defaults["grpc.max_receive_message_length"], 64 * 1024 * 1024);
});

test("frames larger than gRPC's default are received", async (context) => {
  const { broker, client } = await start(context);
  const payload = Buffer.alloc(3 << 20, "x");
  const messages = ["a", "b", "c"].map((id) => message(id, { payload }));
  broker.script("Consume", framesThenIdle({ messages }));
  const consumer = client.consume("orders");
  for (const { id } of messages) {
    const { value } = await consumer.next();
    assert.equal(value.id, id);
    assert.ok(value.payload.equals(payload));
  }
});

test("a small limit is kept in both directions", async (context) => {
  const { broker, client } = await start(context, { maxMessageBytes: 1_000 });
  const payload = Buffer.alloc(2_000);
  broker.script("Receive", () => ({ messages: [message("a", { payload })] }));
  await assert.rejects(client.receive("orders"), ResourceExhaustedError);
  await assert.rejects(client.enqueue("orders", null, payload), ResourceExhaustedError);
});

// --- Close ---------------------------------------------------------------------------------------

test("after close every call rejects with client closed", async (context) => {
  const { broker, client } = await start(context);
  await client.enqueue("orders");
  await client.close();
  await client.close();
  await client[Symbol.asyncDispose]();
  for (const call of [
    () => client.enqueue("orders"),
    () => client.enqueue("orders", null, null, { idempotencyKey: "k" }),
    () => client.enqueueMany([{ queue: "orders" }]),
    () => client.enqueueMany([]),
    () => client.ack("orders", "m"),
    () => client.ackMany([]),
    () => client.nack("orders", "m"),
    () => client.nackMany([]),
    () => client.extend("orders", "m"),
    () => client.receive("orders"),
    async () => client.consume("orders"),
    () => client.listQueues(),
    () => client.setConfig("k", "v"),
  ]) {
    await assert.rejects(call, (error) => {
      assert.equal(error.constructor, ClientClosedError);
      return error.message === "the client is closed";
    });
  }
  assert.equal(broker.seen.length, 1);
});

test("a client that was never used can be closed", async () => {
  await new Client().close();
});

test("close cuts off what is not answered in time", async (context) => {
  const { broker, client } = await start(context, { timeoutMs: 60_000, closeTimeoutMs: 0 });
  const gate = new Gate(broker);
  broker.script("GetConfig", () => new Promise(() => undefined));
  const calls = [client.enqueue("orders"), client.getConfig("k")];
  await until(() => broker.seen.length === 2);
  for (const idempotencyKey of [undefined, "k"]) {
    for (let number = 0; number < 5; number += 1) {
      calls.push(client.enqueue("orders", null, null, { idempotencyKey }));
    }
  }
  const settled = Promise.allSettled(calls);
  await client.close();
  for (const { reason } of await settled) assert.equal(reason?.constructor, ClientClosedError);
  gate.open();
});

test("a process exits after close, with no call left to wait for", async (context) => {
  const { broker } = await start(context);
  broker.script("Consume", framesThenIdle(frame("a")));
  const program = `
    import { Client } from "@fila/client";
    const client = new Client("${broker.target}");
    await client.enqueue("orders");
    await client.consume("orders").next();
    await client.close();
    console.log("closed");`;
  const options = { cwd: new URL(".", import.meta.url), timeout: 60_000 };
  const args = ["--input-type=module", "-e", program];
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, options);
  assert.deepEqual([stdout, stderr], ["closed\n", ""]);
});

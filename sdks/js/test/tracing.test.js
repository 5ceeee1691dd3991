// SPDX-License-Identifier: AGPL-3.0-only
// The active span travels with the message and with the call; nobody's own context is replaced.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";

import { Client } from "@fila/client";
import { ROOT_CONTEXT, context as otel, createTraceState, trace } from "@opentelemetry/api";
import { AlwaysOffSampler, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";

import { Gate, ScriptedBroker, frame, framesThenIdle, until } from "./broker.js";

const OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

const provider = new NodeTracerProvider();
provider.register();
const tracer = provider.getTracer("test");

async function start(context, options = {}) {
  const broker = await ScriptedBroker.start(context);
  const client = new Client(broker.target, { timeoutMs: 60_000, ...options });
  context.after(() => client.close());
  return { broker, client };
}

function parentOf(span) {
  const { traceId, spanId } = span.spanContext();
  return `00-${traceId}-${spanId}-01`;
}

function headersSent(broker) {
  const messages = broker.requests("EnqueueBatch").flatMap((request) => request.messages);
  return messages.map((message) => Object.fromEntries(message.headers));
}

test("the active span is in headers and metadata", async (context) => {
  const { broker, client } = await start(context, { apiKey: "k" });
  broker.script("Consume", framesThenIdle(frame("a")));
  broker.script("ListQueues", () => ({}));
  const span = tracer.startSpan("produce");
  await otel.with(trace.setSpan(otel.active(), span), async () => {
    await client.enqueue("orders", { a: "b" }, Buffer.from("x"));
    await client.enqueueMany([{ queue: "orders" }, { queue: "orders" }]);
    await client.ack("orders", "m-1");
    await client.listQueues();
    await client.consume("orders").next();
  });
  const traceparent = parentOf(span);
  const alone = { traceparent };
  assert.deepEqual(headersSent(broker), [{ a: "b", traceparent }, alone, alone]);
  assert.equal(broker.seen.length, 5);
  for (const { metadata } of broker.seen) {
    assert.equal(metadata.traceparent, traceparent);
    assert.equal(metadata.authorization, "Bearer k");
  }
});

test("tracestate travels too", async (context) => {
  const { broker, client } = await start(context);
  const [, traceId, spanId] = OWN.split("-");
  const traceState = createTraceState("vendor=value");
  const remote = { traceId, spanId, traceFlags: 1, traceState, isRemote: true };
  const parent = trace.setSpanContext(ROOT_CONTEXT, remote);
  const span = tracer.startSpan("produce", {}, parent);
  await otel.with(trace.setSpan(parent, span), () => client.enqueue("orders"));
  const [headers] = headersSent(broker);
  assert.deepEqual(headers, { traceparent: parentOf(span), tracestate: "vendor=value" });
  assert.equal(headers.traceparent.split("-")[1], traceId);
  assert.equal(broker.seen[0].metadata.tracestate, "vendor=value");
});

test("a traceparent of the caller's own is untouched", async (context) => {
  const { broker, client } = await start(context);
  const headers = { traceparent: "nonsense", tracestate: "mine=1" };
  await tracer.startActiveSpan("produce", async () => {
    await client.enqueue("orders", { traceparent: OWN });
    await client.enqueue("orders", headers);
  });
  assert.deepEqual(headersSent(broker), [{ traceparent: OWN }, headers]);
});

test("the caller's headers are not changed", async (context) => {
  const { client } = await start(context);
  const headers = Object.freeze({ a: "b" });
  await tracer.startActiveSpan("produce", () => client.enqueue("orders", headers));
  assert.deepEqual(headers, { a: "b" });
});

test("without a recording span nothing is added", async (context) => {
  const { broker, client } = await start(context);
  await client.enqueue("orders");
  const dropped = new NodeTracerProvider({ sampler: new AlwaysOffSampler() }).getTracer("test");
  await dropped.startActiveSpan("dropped", () => client.enqueue("orders"));
  assert.deepEqual(headersSent(broker), [{}, {}]);
  for (const { metadata } of broker.seen) assert.ok(!("traceparent" in metadata));
});

test("each message of a shared request keeps its own trace", async (context) => {
  const { broker, client } = await start(context);
  const gate = new Gate(broker);
  const spans = [tracer.startSpan("one"), tracer.startSpan("two")];
  const calls = spans.map((span) =>
    otel.with(trace.setSpan(otel.active(), span), () => client.enqueue("orders")),
  );
  calls.push(client.enqueue("orders"));
  await until(() => broker.seen.length === 1);
  gate.open();
  await Promise.all(calls);
  const [one, two] = spans.map((span) => ({ traceparent: parentOf(span) }));
  assert.deepEqual(headersSent(broker), [one, two, {}]);
  assert.equal(broker.seen.length, 1);
});

test("without OpenTelemetry nothing is added and nothing is loaded", async (context) => {
  const { broker } = await start(context);
  const program = `
    const { Client } = require("@fila/client");
    const client = new Client("${broker.target}");
    client.enqueue("orders", { a: "b" }).then(() => client.close()).then(() => {
      console.log(Object.keys(require.cache).filter((path) => path.includes("opentelemetry")));
    });`;
  const options = { cwd: new URL(".", import.meta.url), timeout: 60_000 };
  const args = ["--input-type=commonjs", "-e", program];
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, options);
  assert.deepEqual([stdout, stderr], ["[]\n", ""]);
  assert.deepEqual(headersSent(broker), [{ a: "b" }]);
});

// SPDX-License-Identifier: AGPL-3.0-only
// The active span travels with the message and with the call; nobody's own context is replaced.
// And back: a message gives its sender's context, and a span around its handling.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, rm, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { Client, Message, extract, processing } from "@fila/client";
import {
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  context as otel,
  createTraceState,
  trace,
} from "@opentelemetry/api";
import {
  AlwaysOffSampler,
  InMemorySpanExporter,
  NodeTracerProvider,
  SimpleSpanProcessor,
} from "@opentelemetry/sdk-trace-node";

import { Gate, ScriptedBroker, frame, framesThenIdle, message, until } from "./broker.js";

const OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

const exporter = new InMemorySpanExporter();
const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
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

/** Runs a program where the package is installed, with OpenTelemetry's API or without it. */
async function installed(context, hasApi, program) {
  const folder = await mkdtemp(join(tmpdir(), "fila-"));
  context.after(() => rm(folder, { recursive: true }));
  const own = fileURLToPath(new URL("..", import.meta.url));
  const target = join(folder, "node_modules/@fila/client");
  await mkdir(target, { recursive: true });
  await cp(join(own, "dist"), join(target, "dist"), { recursive: true });
  await cp(join(own, "package.json"), join(target, "package.json"));
  const scopes = ["@grpc", "@bufbuild", ...(hasApi ? ["@opentelemetry"] : [])];
  for (const scope of scopes) {
    await symlink(join(own, "node_modules", scope), join(folder, "node_modules", scope));
  }
  const options = { cwd: folder, timeout: 60_000 };
  const type = program.includes("require(") ? "commonjs" : "module";
  const args = [`--input-type=${type}`, "-e", program];
  return promisify(execFile)(process.execPath, args, options);
}

for (const hasApi of [true, false]) {
  for (const load of [
    `import { Client, Message, extract, processing } from "@fila/client";`,
    `const { Client, Message, extract, processing } = require("@fila/client");`,
  ]) {
    const api = hasApi ? "that is not set up" : "that is not installed";
    test(`OpenTelemetry ${api} adds nothing: ${load.split(" ")[0]}`, async (context) => {
      const { broker } = await start(context);
      const program = `${load}
        (async () => {
          const client = new Client("${broker.target}");
          await client.enqueue("orders", { a: "b" });
          await client.close();
          const message = new Message({ id: "m", headers: [] });
          await processing(message, (span) => {
            console.log(span?.isRecording() ?? "no span", extract(message) !== undefined);
          });
        })();`;
      const { stdout, stderr } = await installed(context, hasApi, program);
      assert.deepEqual([stdout, stderr], [hasApi ? "false true\n" : "no span false\n", ""]);
      assert.deepEqual(headersSent(broker), [{ a: "b" }]);
    });
  }
}

function received(headers = {}) {
  const metadata = { queueId: "orders", fairnessKey: "acme", throttleKeys: [], failures: [] };
  const raw = { id: "m-1", headers: Object.entries(headers), payload: Buffer.from("x"), metadata };
  return new Message(raw);
}

/** The spans of the consumer's side that ended meanwhile. */
async function ended(run) {
  exporter.reset();
  await run();
  return exporter.getFinishedSpans().filter(({ kind }) => kind === SpanKind.CONSUMER);
}

function named({ traceId, spanId, traceFlags }) {
  return `00-${traceId}-${spanId}-0${traceFlags}`;
}

test("a message's context is its sender's", () => {
  const message = received({ traceparent: OWN, tracestate: "vendor=value,other=1" });
  const sender = trace.getSpanContext(extract(message));
  assert.equal(named(sender), OWN);
  assert.ok(sender.isRemote);
  assert.equal(sender.traceState.get("vendor"), "value");
  assert.equal(sender.traceState.serialize(), "vendor=value,other=1");
  const changed = sender.traceState.set("mine", "2").unset("other");
  assert.equal(changed.serialize(), "mine=2,vendor=value");
  const span = tracer.startSpan("mine", {}, extract(message));
  assert.equal(named(span.parentSpanContext), OWN);
  assert.equal(span.spanContext().traceState.serialize(), "vendor=value,other=1");
});

test("a message without a context leaves the current one", () => {
  const zeros = `00-${"0".repeat(32)}-${"1".repeat(16)}-01`;
  for (const traceparent of [undefined, "nonsense", `${OWN}-more`, `ff${OWN.slice(2)}`, zeros]) {
    const headers = traceparent === undefined ? {} : { traceparent };
    tracer.startActiveSpan("mine", (span) => {
      assert.equal(trace.getSpan(extract(received(headers))), span);
    });
  }
});

test("processing is a consumer's span below its sender", async () => {
  const [span] = await ended(async () => {
    const given = await processing(received({ traceparent: OWN }), (active) => {
      assert.equal(trace.getActiveSpan(), active);
      return 42;
    });
    assert.equal(given, 42);
  });
  assert.equal(span.name, "process orders");
  assert.equal(named(span.parentSpanContext), OWN);
  assert.deepEqual(span.links.map(({ context }) => named(context)), [OWN]);
  assert.deepEqual(span.attributes, {
    "messaging.system": "fila",
    "messaging.operation.name": "process",
    "messaging.operation.type": "process",
    "messaging.destination.name": "orders",
    "messaging.message.id": "m-1",
    fairness_key: "acme",
  });
  assert.equal(span.status.code, SpanStatusCode.UNSET);
});

test("processing inside a span is below that one and linked to its sender", async () => {
  const mine = tracer.startSpan("mine");
  const [span] = await ended(() =>
    otel.with(trace.setSpan(otel.active(), mine), () =>
      processing(received({ traceparent: OWN }), () => undefined),
    ),
  );
  assert.equal(named(span.parentSpanContext), named(mine.spanContext()));
  assert.deepEqual(span.links.map(({ context }) => named(context)), [OWN]);
});

test("processing a message without a context begins a trace", async () => {
  const [span] = await ended(() => processing(received({ traceparent: "x" }), () => undefined));
  assert.equal(span.parentSpanContext, undefined);
  assert.deepEqual(span.links, []);
});

test("processing that fails says so and throws", async () => {
  const failing = () => processing(received(), () => Promise.reject(new RangeError("no")));
  const [span] = await ended(() => assert.rejects(failing, RangeError));
  assert.equal(span.status.code, SpanStatusCode.ERROR);
  assert.equal(span.attributes["error.type"], "RangeError");
});

test("a span that the sender does not sample is not recorded", async () => {
  const message = received({ traceparent: OWN.slice(0, -1) + "0" });
  const spans = await ended(() =>
    processing(message, (span) => assert.equal(span.isRecording(), false)),
  );
  assert.deepEqual(spans, []);
});

test("a worker's handlers run inside spans, a batch inside one", async (context) => {
  const { broker, client } = await start(context);
  const sent = (id) => ({ ...message(id), headers: new Map([["traceparent", OWN]]) });
  broker.script("Consume", framesThenIdle({ messages: [sent("a"), sent("b")] }));
  const active = [];
  const run = async (options, count, handler) => {
    const worker = client.worker("orders", handler, options);
    const running = worker.run({ signals: false });
    await until(() => active.length === count, "the handlers");
    await worker.stop();
    await running;
  };
  const note = () => active.push(trace.getActiveSpan().spanContext().spanId);
  const single = await ended(() => run({ concurrency: 1 }, 2, note));
  assert.deepEqual(single.map((span) => span.spanContext().spanId), active);
  assert.deepEqual(single.map((span) => span.attributes["messaging.message.id"]), ["a", "b"]);
  const [batch, ...others] = await ended(() => run({ batchSize: 5 }, 3, note));
  assert.deepEqual([batch.spanContext().spanId, others], [active[2], []]);
  assert.deepEqual(batch.links.map((link) => named(link.context)), [OWN, OWN]);
  assert.equal(batch.parentSpanContext, undefined);
  assert.equal(batch.attributes["messaging.batch.message_count"], 2);
});

// SPDX-License-Identifier: AGPL-3.0-only
// One trace across a queue: the consumer's span is a child of the producer's.
//
// The client adds the trace context of the active span to the message's headers. The consumer reads
// it with OpenTelemetry's own propagator. Needs `npm install @opentelemetry/api
// @opentelemetry/sdk-trace-node`.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

import { Client } from "@fila/client";
import { context, propagation } from "@opentelemetry/api";
import { NodeTracerProvider } from "@opentelemetry/sdk-trace-node";

const provider = new NodeTracerProvider();
provider.register();
const tracer = provider.getTracer("fila.examples.tracing");

const client = new Client(process.env.FILA_ADDR ?? "127.0.0.1:5555");
const queue = `tracing-${randomUUID().slice(0, 8)}`;
await client.createQueue(queue);

const sent = await tracer.startActiveSpan(`send ${queue}`, async (span) => {
  await client.enqueue(queue, {}, Buffer.from("hello"));
  span.end();
  return span.spanContext();
});

const [message] = await client.receive(queue, { waitMs: 2_000 });
const parent = propagation.extract(context.active(), message.headers);
const processed = await tracer.startActiveSpan(`process ${queue}`, {}, parent, async (span) => {
  await message.ack();
  span.end();
  return span.spanContext();
});

assert.equal(processed.traceId, sent.traceId, "the trace was broken");
console.log(`one trace for both sides: ${sent.traceId}`);
await client.deleteQueue(queue);
await client.close();

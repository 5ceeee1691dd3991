// SPDX-License-Identifier: AGPL-3.0-only
// One trace across a queue: producer, broker, consumer.
//
// The client adds the trace context of the active span to the message's headers and to its calls,
// so that the broker's spans are below it (see `[telemetry]` in the broker's configuration).
// `processing` is the consumer's span. Needs `npm install @opentelemetry/api
// @opentelemetry/sdk-trace-node`.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

import { Client, processing } from "@fila/client";
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
const processed = await processing(message, async (span) => {
  await message.ack();
  return span.spanContext();
});

assert.equal(processed.traceId, sent.traceId, "the trace was broken");
console.log(`one trace for both sides: ${sent.traceId}`);
await client.deleteQueue(queue);
await client.close();

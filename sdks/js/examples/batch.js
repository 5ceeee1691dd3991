// SPDX-License-Identifier: AGPL-3.0-only
// Many messages at a time, both ways: what a load job or a pipeline does.

import { randomUUID } from "node:crypto";

import { Client } from "@fila/client";

const MESSAGES = 10_000;

const client = new Client(process.env.FILA_ADDR ?? "127.0.0.1:5555", { timeoutMs: 30_000 });
const queue = `batch-${randomUUID().slice(0, 8)}`;
await client.createQueue(queue);

function report(what, count, startedAt) {
  const perSecond = Math.round((count / (performance.now() - startedAt)) * 1_000);
  const [total, rate] = [count, perSecond].map((number) => number.toLocaleString("en-US"));
  console.log(`${what} ${total} messages at ${rate}/s`);
}

function* rows() {
  const payload = Buffer.alloc(256, "x");
  for (let n = 0; n < MESSAGES; n += 1) {
    // With a key for each message the client may send a request again when the broker was away.
    yield { queue, headers: { row: `${n}` }, payload, idempotencyKey: `${queue}-${n}` };
  }
}

const storing = performance.now();
const results = await client.enqueueMany(rows());
report("stored", results.filter((result) => result.error === null).length, storing);

const draining = performance.now();
let done = 0;
for (;;) {
  const messages = await client.receive(queue, { maxMessages: 1_000 });
  if (messages.length === 0) break;
  const outcomes = await client.ackMany(messages);
  done += outcomes.filter((error) => error === null).length;
}
report("drained", done, draining);

await client.deleteQueue(queue);
await client.close();

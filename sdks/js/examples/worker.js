// SPDX-License-Identifier: AGPL-3.0-only
// A worker runs handlers side by side: returning acks, throwing nacks, and what fails too often is
// dead-lettered.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { Client } from "@fila/client";

const MESSAGES = 20;
const HANDLERS = 5;

const client = new Client(process.env.FILA_ADDR ?? "127.0.0.1:5555");
const queue = `worker-${randomUUID().slice(0, 8)}`;
// The second failure of a message is its last.
const deadLetters = await client.createQueue(queue, { maxAttempts: 2 });
await client.enqueueMany(
  Array.from({ length: MESSAGES }, (_, n) => ({ queue, payload: Buffer.from(`${n}`) })),
);

/** What a real worker does with a message; this one cannot stand the number 13. */
async function handle(message) {
  await sleep(20);
  if (message.payload.toString() === "13") throw new RangeError("unlucky number");
}

let settled = 0;

const worker = client.worker(queue, handle, {
  concurrency: HANDLERS,
  onEvent: () => {
    settled += 1;
    // One of them comes twice. Then it is done; SIGTERM and SIGINT would stop it, too.
    if (settled === MESSAGES + 1) worker.stop();
  },
});
await worker.run();

const [letter] = await client.receive(deadLetters, { waitMs: 2_000 });
console.log(`${MESSAGES - 1} messages were processed`);
console.log(`message ${letter.payload} is a dead letter: ${letter.lastError}`);
await letter.ack();
await client.deleteQueue(queue);
await client.close();

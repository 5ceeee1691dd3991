// SPDX-License-Identifier: AGPL-3.0-only
// One message from a producer to a consumer.

import { randomUUID } from "node:crypto";

import { Client } from "@fila/client";

const client = new Client(process.env.FILA_ADDR ?? "127.0.0.1:5555");
const queue = `quickstart-${randomUUID().slice(0, 8)}`;
await client.createQueue(queue);

const messageId = await client.enqueue(queue, { tenant: "acme" }, Buffer.from("hello"));
console.log(`enqueued ${messageId}`);

for await (const message of client.consume(queue)) {
  console.log(`received '${message.payload}' of ${message.headers.tenant}`);
  await message.ack();
  break;
}

await client.deleteQueue(queue);
await client.close();

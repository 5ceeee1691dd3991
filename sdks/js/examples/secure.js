// SPDX-License-Identifier: AGPL-3.0-only
// TLS, a client certificate and an API key; each only if its variable is set. FILA_CA names the
// CA's certificate, FILA_CERT and FILA_KEY the client's own, FILA_API_KEY the key.

import { randomUUID } from "node:crypto";

import { Client, UnauthenticatedError, UnavailableError } from "@fila/client";

const { FILA_ADDR, FILA_CA, FILA_CERT, FILA_KEY, FILA_API_KEY } = process.env;
const tls = { ca: FILA_CA, cert: FILA_CERT, key: FILA_KEY };
const client = new Client(FILA_ADDR ?? "127.0.0.1:5555", {
  tls: FILA_CA || FILA_CERT ? tls : undefined,
  apiKey: FILA_API_KEY,
});

try {
  const queue = `secure-${randomUUID().slice(0, 8)}`;
  await client.createQueue(queue);
  await client.enqueue(queue, {}, Buffer.from("for your eyes only"));
  const [message] = await client.receive(queue, { waitMs: 2_000 });
  console.log(`received '${message.payload}'`);
  await message.ack();
  await client.deleteQueue(queue);
} catch (error) {
  if (error instanceof UnauthenticatedError) {
    console.error(`the broker does not accept the API key: ${error.message}`);
  } else if (error instanceof UnavailableError) {
    console.error(`no broker, or none with the right certificate: ${error.message}`);
  } else {
    throw error;
  }
  process.exitCode = 1;
} finally {
  await client.close();
}

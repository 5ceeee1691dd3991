// SPDX-License-Identifier: AGPL-3.0-only
// The same types from a CommonJS program.

import fila = require("@fila/client");

export async function run(): Promise<number> {
  const client = new fila.Client("127.0.0.1:5555", { tls: { ca: "ca.pem" }, apiKey: "k" });
  const messages: fila.ConsumeMessage[] = await client.receive("orders");
  await client.close();
  return messages.length;
}

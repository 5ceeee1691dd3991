// SPDX-License-Identifier: AGPL-3.0-only
// The broker proves itself to the client, and with mTLS the client to the broker.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { Client, UnavailableError } from "@fila/client";

import { ScriptedBroker, certificate, tlsCredentials } from "./broker.js";

const CA = certificate("ca.pem");
const PAIR = { cert: certificate("client.pem"), key: certificate("client.key") };

function secure(context, options) {
  return ScriptedBroker.start(context, { credentials: tlsCredentials(options) });
}

function connect(context, target, tls, options = {}) {
  const client = new Client(target, { tls, timeoutMs: 60_000, ...options });
  context.after(() => client.close());
  return client;
}

test("a private CA is verified, and the API key travels", async (context) => {
  const broker = await secure(context);
  const client = connect(context, broker.target, { ca: CA }, { apiKey: "k" });
  assert.match(await client.enqueue("orders", null, Buffer.from("x")), /^x#/);
  assert.equal(broker.seen[0].metadata.authorization, "Bearer k");
});

for (const [what, tls] of [
  ["of another CA", { ca: certificate("other_ca.pem") }],
  ["for another name", { ca: CA, serverName: "elsewhere" }],
  ["that no root of Node.js has signed", {}],
]) {
  test(`a certificate ${what} is refused`, async (context) => {
    const broker = await secure(context);
    await assert.rejects(connect(context, broker.target, tls).enqueue("q"), UnavailableError);
    assert.deepEqual(broker.seen, []);
  });
}

test("a server name stands in for the target", async (context) => {
  const broker = await secure(context);
  const tls = { ca: CA, serverName: "localhost" };
  await connect(context, `dns:///127.0.0.1:${broker.port}`, tls).enqueue("orders");
  assert.equal(broker.seen.length, 1);
});

test("plaintext to a TLS port is unavailable", async (context) => {
  const broker = await secure(context);
  await assert.rejects(connect(context, broker.target).enqueue("orders"), UnavailableError);
});

test("mutual TLS needs the client's certificate", async (context) => {
  const broker = await secure(context, { isMutual: true });
  const without = connect(context, broker.target, { ca: CA });
  await assert.rejects(without.enqueue("orders"), UnavailableError);
  await connect(context, broker.target, { ca: CA, ...PAIR }).enqueue("orders");
  assert.equal(broker.seen.length, 1);
});

test("a bad TLS file is named", (context) => {
  const folder = mkdtempSync(join(tmpdir(), "fila-"));
  context.after(() => {
    rmSync(folder, { recursive: true });
  });
  const missing = join(folder, "missing.pem");
  const text = join(folder, "text.pem");
  writeFileSync(text, "not a certificate");
  const broken = join(folder, "broken.pem");
  writeFileSync(broken, "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n");
  for (const [tls, expected] of [
    [{ ca: missing }, /^cannot read tls ca ".*missing.pem": ENOENT/],
    [{ ...PAIR, key: text }, /^tls key ".*text.pem" is not a PEM file$/],
    [{ ...PAIR, cert: broken }, /^what tls was given cannot be used: /],
    [{ cert: PAIR.cert }, /^tls cert and key go together; give both or neither$/],
    [{ key: PAIR.key }, /^tls cert and key go together; give both or neither$/],
  ]) {
    assert.throws(() => new Client(undefined, { tls }), (error) => {
      assert.match(error.message, expected);
      return error instanceof TypeError;
    });
  }
});

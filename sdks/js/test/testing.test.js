// SPDX-License-Identifier: AGPL-3.0-only
// The broker for tests is a real one. FILA_SERVER names `fila-server`, or it is on PATH.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readdirSync, rmSync } from "node:fs";
import { mkdtempSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { Client, UnavailableError } from "@fila/client";
import { TestingBroker } from "@fila/client/testing";

import { until } from "./broker.js";

/** Where the brokers of this process have their directories. */
function ownTemporary(context) {
  const folder = mkdtempSync(join(tmpdir(), "fila-"));
  const { TMPDIR } = process.env;
  process.env.TMPDIR = folder;
  context.after(() => {
    if (TMPDIR === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = TMPDIR;
    rmSync(folder, { recursive: true, force: true });
  });
  return folder;
}

function setServer(context, program) {
  const { FILA_SERVER } = process.env;
  process.env.FILA_SERVER = program;
  context.after(() => {
    if (FILA_SERVER === undefined) delete process.env.FILA_SERVER;
    else process.env.FILA_SERVER = FILA_SERVER;
  });
}

function isAlive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

test("a broker takes messages and gives them, and leaves nothing behind", async (context) => {
  const folder = ownTemporary(context);
  const broker = await TestingBroker.start();
  context.after(() => broker.stop());
  assert.match(broker.address, /^127\.0\.0\.1:\d+$/);
  assert.equal(readdirSync(folder).length, 1);
  const client = new Client(broker.address, { timeoutMs: 60_000 });
  context.after(() => client.close());
  await client.waitReady();
  const dlq = await client.ensureQueue("orders", { maxAttempts: 3 });
  assert.equal(await client.ensureQueue("orders", { maxAttempts: 3 }), dlq);
  await assert.rejects(client.ensureQueue("orders", { maxAttempts: 4 }), /maxAttempts is 3/);
  await client.enqueue("orders", { tenant: "acme" }, { json: { total: 17 } });
  for await (const [message] of client.consume("orders").batches(10)) {
    assert.deepEqual(message.json(), { total: 17 });
    const [end] = await client.extendMany([message], { ms: 60_000 });
    assert.ok(end instanceof Date, `${end}`);
    await message.ack();
    break;
  }
  await broker.stop();
  await broker.stop();
  assert.ok(!isAlive(broker.pid));
  assert.deepEqual(readdirSync(folder), []);
  await assert.rejects(client.ping(), UnavailableError);
});

test("more of its configuration is taken, and a wrong one is told", async (context) => {
  const folder = ownTemporary(context);
  const broker = await TestingBroker.start({ config: "[limits]\nmax_payload_bytes = 2048\n" });
  context.after(() => broker.stop());
  const client = new Client(broker.address, { timeoutMs: 60_000 });
  context.after(() => client.close());
  await client.createQueue("orders");
  await client.enqueue("orders", null, Buffer.alloc(2_000));
  await assert.rejects(client.enqueue("orders", null, Buffer.alloc(3_000)), /2048/);
  await broker.stop();
  await assert.rejects(
    TestingBroker.start({ config: "[limits]\nnonsense = 1\n" }),
    /^Error: fila-server ended before it was ready \(\d+\):\n[^]*nonsense/,
  );
  assert.deepEqual(readdirSync(folder), []);
});

test("without fila-server the error says how to get it", async (context) => {
  setServer(context, "/nowhere/fila-server");
  await assert.rejects(TestingBroker.start(), {
    message:
      "fila-server is not installed: `pip install fila-server`, and put it on PATH or its path " +
      "into FILA_SERVER",
  });
});

test("a broker does not outlive its test's process, and does not hold it up", async (context) => {
  ownTemporary(context);
  const program = `
    import { TestingBroker } from "@fila/client/testing";
    const broker = await TestingBroker.start();
    console.log(broker.pid);
    if (process.argv[1] === "killed") setTimeout(() => undefined, 600_000);
  `;
  for (const how of ["left", "killed"]) {
    const args = ["--input-type=module", "-e", program, how];
    const cwd = new URL("..", import.meta.url);
    const child = spawn(process.execPath, args, { cwd, stdio: ["ignore", "pipe", "inherit"] });
    const ended = once(child, "exit");
    const [line] = await Promise.race([once(child.stdout, "data"), ended]);
    assert.match(`${line}`, /^[1-9]\d*\n$/, "it started no broker");
    const pid = Number(`${line}`);
    if (how === "killed") child.kill("SIGKILL");
    await ended;
    await until(() => !isAlive(pid), "the broker's end");
  }
});

test("both module formats have it", () => {
  const require = createRequire(import.meta.url);
  assert.equal(typeof require("@fila/client/testing").TestingBroker.start, "function");
  assert.ok(existsSync(new URL("../dist/cjs/testing.d.ts", import.meta.url)));
});

// SPDX-License-Identifier: AGPL-3.0-only
// A worker ends as it is told to: by a call, by a signal, with its client, or by an error.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

import { ClientClosedError, PermissionDeniedError, QueueNotFoundError } from "@fila/client";

import { frame, freePort, refusal, status, until } from "./broker.js";
import { QUIET, acked, latch, nacked, start } from "./work.js";

test("a stop gives back what no handler has seen, and lets handlers finish", async (context) => {
  const { broker, client } = await start(context, frame("a", "b", "c"));
  const gate = latch();
  const handled = [];
  const worker = client.worker("orders", async ({ id }) => {
    handled.push(id);
    await gate.opened;
  }, { concurrency: 1, prefetch: 3 });
  const run = worker.run(QUIET);
  await until(() => handled.length === 1, "the handler");
  const stopped = worker.stop();
  await until(() => nacked(broker).length === 2, "what is given back");
  for (const { retryAfterMs } of nacked(broker)) assert.equal(retryAfterMs, 0);
  assert.deepEqual(acked(broker), []);
  gate.open();
  await Promise.all([stopped, run]);
  assert.deepEqual([handled, acked(broker)], [["a"], ["a"]]);
});

test("what runs after the grace is given back and told", async (context) => {
  const { broker, client } = await start(context, frame("a"));
  const found = [];
  const gate = latch();
  let reason;
  let handled = 0;
  const worker = client.worker("orders", async (_, { signal }) => {
    handled += 1;
    await once(signal, "abort");
    ({ reason } = signal);
    await gate.opened;
    throw new Error("nobody listens any more");
  }, { graceMs: 20, onEvent: (event) => void found.push(event.kind) });
  const run = worker.run(QUIET);
  await until(() => handled === 1, "the handler");
  await worker.stop();
  await run;
  assert.equal(reason.name, "AbortError");
  const given = nacked(broker).map(({ messageId, retryAfterMs }) => [messageId, retryAfterMs]);
  assert.deepEqual(given, [["a", 0]]);
  gate.open();
  await sleep(20);
  assert.deepEqual([found, nacked(broker).length], [["given_back"], 1]);
});

test("another stop makes the grace shorter, and none makes it longer", async (context) => {
  const { client } = await start(context, frame("a"));
  let handled = 0;
  const worker = client.worker("orders", () => {
    handled += 1;
    return new Promise(() => undefined);
  });
  let isEnded = false;
  const run = worker.run(QUIET).then(() => {
    isEnded = true;
  });
  await until(() => handled === 1, "the handler");
  void worker.stop({ graceMs: 600_000 });
  await sleep(100);
  assert.equal(isEnded, false);
  await Promise.all([worker.stop({ graceMs: 0 }), worker.stop({ graceMs: 600_000 })]);
  await run;
});

test("a signal of the caller stops the worker", async (context) => {
  const { broker, client } = await start(context, frame("a"));
  const controller = new AbortController();
  const worker = client.worker("orders", () => controller.abort());
  await worker.run({ signal: controller.signal, signals: false });
  assert.deepEqual(acked(broker), ["a"]);
  const late = client.worker("orders", () => undefined);
  await late.run({ signal: controller.signal });
  assert.equal(broker.calls("Consume").length, 1);
});

test("a worker that was stopped before does not run, and none runs twice", async (context) => {
  const { broker, client } = await start(context, frame("a"));
  const worker = client.worker("orders", () => undefined);
  await worker.stop();
  await worker.run();
  assert.deepEqual(broker.seen, []);
  await assert.rejects(worker.run(), /runs once/);
});

for (const [reason, error] of [
  ["QUEUE_NOT_FOUND", QueueNotFoundError],
  ["PERMISSION_DENIED", PermissionDeniedError],
]) {
  test(`${reason} ends the worker after its handlers`, async (context) => {
    const { broker, client } = await start(context);
    const gate = latch();
    broker.script("Consume", async function* () {
      yield frame("a");
      throw refusal(status[reason] ?? status.NOT_FOUND, "no", reason);
    });
    let isEnded = false;
    const worker = client.worker("orders", () => gate.opened, { concurrency: 4 });
    const run = assert.rejects(worker.run(QUIET), error).then(() => {
      isEnded = true;
    });
    await sleep(100);
    assert.equal(isEnded, false);
    gate.open();
    await run;
    assert.deepEqual(acked(broker), ["a"]);
    await worker.stop();
  });
}

test("closing the client ends its workers", async (context) => {
  const { broker, client } = await start(context, frame("a"));
  const worker = client.worker("orders", () => undefined);
  const run = worker.run(QUIET);
  await until(() => acked(broker).length === 1, "the ack");
  await client.close();
  await run;
  assert.throws(() => client.consume("orders"), ClientClosedError);
  await assert.rejects(client.worker("orders", () => undefined).run(), ClientClosedError);
});

test("listeners for signals are there while a worker runs, and no longer", async (context) => {
  const { broker, client } = await start(context, frame());
  const counts = () => ["SIGTERM", "SIGINT"].map((name) => process.listenerCount(name));
  const before = counts();
  // More than what Node.js takes for a leak.
  const workers = Array.from({ length: 12 }, () => client.worker("orders", () => undefined));
  const warnings = [];
  const listener = (warning) => warnings.push(warning);
  process.on("warning", listener);
  const runs = workers.map((worker) => worker.run());
  await until(() => broker.calls("Consume").length === 12, "the streams");
  assert.deepEqual(counts(), before.map((count) => count + 1));
  await Promise.all(workers.map((worker) => worker.stop()));
  await Promise.all(runs);
  process.off("warning", listener);
  assert.deepEqual([counts(), warnings], [before, []]);
});

const folder = new URL(".", import.meta.url);

/** A program with a worker, as a process of its own. */
function program(target, handler, rest = "") {
  const source = `
    import { Client } from "@fila/client";
    const client = new Client("${target}");
    const worker = client.worker("orders", ${handler});
    await worker.run();
    console.log("ended");
    await client.close();${rest}`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", source], { cwd: folder });
  child.output = "";
  child.stdout.on("data", (data) => (child.output += data));
  return child;
}

test("SIGTERM ends the worker, then the process", async (context) => {
  const { broker } = await start(context, frame("a"));
  const child = program(broker.target, `() => console.log("handled")`);
  await until(() => acked(broker).length === 1, "the ack");
  assert.equal(child.exitCode, null);
  child.kill("SIGTERM");
  // Not "exit", after which there may be output to come.
  assert.deepEqual(await once(child, "close"), [0, null]);
  assert.equal(child.output, "handled\nended\n");
});

test("a second signal ends the grace", async (context) => {
  const { broker } = await start(context, frame("a"));
  const child = program(
    broker.target,
    `() => new Promise(() => { console.log("handling"); setInterval(() => {}, 9e5); })`,
    `process.exit(0);`,
  );
  await until(() => child.output === "handling\n", "the handler");
  child.kill("SIGINT");
  // Two signals at once might count as one.
  await until(() => broker.scripts.Consume.ended, "the end of the stream");
  await sleep(100);
  assert.equal(child.exitCode, null);
  child.kill("SIGINT");
  assert.deepEqual(await once(child, "exit"), [0, null]);
  assert.deepEqual(nacked(broker).map(({ retryAfterMs }) => retryAfterMs), [0]);
});

test("a worker whose broker is away keeps its process alive", async () => {
  const child = program(`127.0.0.1:${await freePort()}`, "() => undefined");
  let errors = "";
  child.stderr.on("data", (data) => (errors += data));
  await until(() => errors.includes("FILA_STREAM_LOST"), "the warning");
  await sleep(500);
  assert.equal(child.exitCode, null);
  child.kill("SIGTERM");
  assert.deepEqual(await once(child, "exit"), [0, null]);
});

test("a worker that does not run keeps no process alive", async (context) => {
  const { broker } = await start(context);
  const source = `
    import { Client } from "@fila/client";
    const client = new Client("${broker.target}");
    client.worker("orders", () => undefined);
    await client.listQueues();`;
  broker.script("ListQueues", () => ({}));
  const args = ["--input-type=module", "-e", source];
  await promisify(execFile)(process.execPath, args, { cwd: folder, timeout: 60_000 });
});

// SPDX-License-Identifier: AGPL-3.0-only
// Which broker a client talks to, what it says of its connection, and what it connects with.

import assert from "node:assert/strict";
import { once } from "node:events";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect as connectTo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { InterceptingCall } from "@grpc/grpc-js";

import { Client, DeadlineExceededError, UnavailableError } from "@fila/client";

import { ScriptedBroker, certificate, frame, framesThenIdle } from "./broker.js";
import { freePort, tlsCredentials, until } from "./broker.js";

const IDLE = { Consume: framesThenIdle(), DeleteQueue: () => ({}) };
const QUICK = { initialMs: 1, maximumMs: 50 };

/** A client, and what it told of its connection. */
function connect(context, target, options = {}) {
  const told = [];
  const onConnection = (event) => void told.push(event);
  const client = new Client(target, {
    ...{ timeoutMs: 60_000, backoff: QUICK, onConnection },
    ...options,
  });
  context.after(() => client.close());
  return { client, told, kinds: () => told.map(({ kind }) => kind) };
}

function warnings(context) {
  const found = [];
  const listener = ({ name, code, message }) => {
    if (name === "FilaWarning") found.push([code, message]);
  };
  process.on("warning", listener);
  context.after(() => process.off("warning", listener));
  return found;
}

/** Calls until it succeeds. */
async function call(client) {
  await client.waitReady({ timeoutMs: 60_000 });
}

// --- Events --------------------------------------------------------------------------------------

test("a client says nothing until it is used, and then that it is connected", async (context) => {
  const broker = await ScriptedBroker.start(context);
  const { client, told } = connect(context, broker.target);
  await sleep(50);
  assert.deepEqual(told, []);
  await client.ping();
  const event = { kind: "connected", address: broker.target, reason: "", awayMs: null };
  assert.deepEqual(told, [event]);
  await client.close();
  await sleep(50);
  assert.equal(told.length, 1);
});

test("each change is told once, and the log says it, however many attempts", async (context) => {
  const said = warnings(context);
  const port = await freePort();
  const first = await ScriptedBroker.start(context, { port, scripts: IDLE });
  const { client, told, kinds } = connect(context, first.target);
  const consumer = client.consume("orders");
  const pending = consumer.next();
  await until(() => kinds().length === 1);
  first.stop();
  await until(() => kinds().length === 3, "the loss");
  await sleep(200);
  const scripts = { Consume: framesThenIdle(frame("a")) };
  await ScriptedBroker.start(context, { port, scripts });
  assert.equal((await pending).value.id, "a");
  await until(() => kinds().length === 4, "the connection");
  assert.deepEqual(kinds(), ["connected", "lost", "unreachable", "connected"]);
  const [, lost, unreachable, connected] = told;
  assert.notEqual(lost.reason, "");
  assert.match(unreachable.reason, /ECONNREFUSED/);
  assert.ok(connected.awayMs >= 200 && connected.awayMs < 120_000, `${connected.awayMs}`);
  const lines = said.filter(([code]) => !code.startsWith("FILA_STREAM"));
  const codes = lines.map(([code]) => code);
  assert.deepEqual(codes, ["FILA_CONNECTION_LOST", "FILA_UNREACHABLE", "FILA_CONNECTED"]);
  assert.equal(lines[0][1], `the connection to ${first.target} is lost: ${lost.reason}`);
  assert.match(lines[1][1], /^no broker can be reached at 127.0.0.1:\d+, trying again: .*ECONN/);
  assert.match(lines[2][1], /^connected to \S+:\d+, after \d+\.\d s without a connection$/);
});

test("what the listener throws is logged and changes nothing", async (context) => {
  const said = warnings(context);
  const broker = await ScriptedBroker.start(context);
  for (const onConnection of [
    () => {
      throw new Error("mine");
    },
    async () => {
      throw new Error("mine");
    },
  ]) {
    await connect(context, broker.target, { onConnection }).client.ping();
  }
  await until(() => said.length === 2);
  for (const line of said) {
    assert.deepEqual(line, ["FILA_EVENT_HANDLER_FAILED", "onConnection failed: Error: mine"]);
  }
});

/** Takes connections and says nothing. */
async function silent(context) {
  const sockets = [];
  const listener = createServer((socket) => void sockets.push(socket));
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  context.after(() => {
    listener.close();
    for (const socket of sockets) socket.destroy();
  });
  return listener;
}

// --- Several addresses ---------------------------------------------------------------------------

test("the first address that answers is used, by calls of every kind", async (context) => {
  const broker = await ScriptedBroker.start(context);
  broker.script("DeleteQueue", () => ({}));
  broker.script("Consume", framesThenIdle(frame("a")));
  const dead = [`127.0.0.1:${await freePort()}`, `127.0.0.1:${await freePort()}`];
  const first = connect(context, `${dead[0]},${broker.target}`);
  await first.client.enqueue("orders");
  assert.deepEqual(first.kinds(), ["connected"]);
  assert.equal(first.told[0].address, broker.target);
  const second = connect(context, [...dead, broker.target]).client;
  assert.equal((await second.consume("orders").next()).value.id, "a");
  const third = connect(context, [...dead, broker.target]).client;
  await Promise.all([third.deleteQueue("orders"), third.ping(), third.enqueue("orders")]);
});

test("after a loss the addresses are tried from the first", async (context) => {
  const port = await freePort();
  const second = await ScriptedBroker.start(context);
  const { client, told, kinds } = connect(context, [`127.0.0.1:${port}`, second.target]);
  await client.ping();
  const first = await ScriptedBroker.start(context, { port });
  second.stop();
  await until(() => kinds().includes("lost"), "the loss");
  await call(client);
  assert.deepEqual(kinds(), ["connected", "lost", "connected"]);
  assert.deepEqual(told.map(({ address }) => address), [
    second.target,
    second.target,
    first.target,
  ]);
});

test("nobody at any address is unavailable, and whoever comes is found", async (context) => {
  const ports = [await freePort(), await freePort()];
  const addresses = ports.map((port) => `127.0.0.1:${port}`);
  const { client, told, kinds } = connect(context, addresses);
  await assert.rejects(client.createQueue("orders"), UnavailableError);
  await until(() => kinds().length === 1);
  assert.equal(told[0].kind, "unreachable");
  assert.equal(told[0].address, addresses.join(","));
  const scripts = { Consume: framesThenIdle(frame("a")) };
  const pending = client.consume("orders").next();
  await ScriptedBroker.start(context, { port: ports[1], scripts });
  assert.equal((await pending).value.id, "a");
  assert.deepEqual(kinds(), ["unreachable", "connected"]);
});

test("an address that answers nothing does not use up a call's deadline", async (context) => {
  const listener = await silent(context);
  const broker = await ScriptedBroker.start(context);
  const addresses = [`127.0.0.1:${listener.address().port}`, broker.target];
  const { client } = connect(context, addresses, { timeoutMs: 2_000 });
  await client.enqueue("orders", null, null, { timeoutMs: 60_000 });
  assert.equal(broker.stored, 1);
});

test("a call that waits for an address can be given up, and a close ends it", async (context) => {
  const listener = await silent(context);
  const address = `127.0.0.1:${listener.address().port}`;
  const { client } = connect(context, [address, address]);
  const late = client.deleteQueue("orders", { timeoutMs: 50 });
  await assert.rejects(late, DeadlineExceededError);
  const signal = AbortSignal.timeout(50);
  await assert.rejects(client.enqueue("q", null, null, { signal }), { name: "TimeoutError" });
  const pending = assert.rejects(client.deleteQueue("orders"), { message: /client is closed/ });
  await client.close();
  await pending;
});

// --- Certificates --------------------------------------------------------------------------------

function folderOf(context) {
  const folder = mkdtempSync(join(tmpdir(), "fila-"));
  context.after(() => {
    rmSync(folder, { recursive: true });
  });
  return {
    path: (name) => join(folder, name),
    put: (name, from) => {
      copyFileSync(certificate(from), join(folder, name));
    },
  };
}

test("certificates in memory are PEM, as bytes or as text", async (context) => {
  const credentials = tlsCredentials({ isMutual: true });
  const broker = await ScriptedBroker.start(context, { credentials, scripts: IDLE });
  const [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map((name) =>
    readFileSync(certificate(name)),
  );
  await connect(context, broker.target, { tls: { ca, cert, key } }).client.deleteQueue("q");
  const texts = { ca: `${ca}`, cert: `${cert}`, key: `${key}` };
  await connect(context, broker.target, { tls: texts }).client.deleteQueue("q");
  assert.deepEqual(broker.seen.map(({ peer }) => peer), ["client", "client"]);
  for (const tls of [{ ca: Buffer.from("nonsense") }, { ca: new Uint8Array(3) }]) {
    assert.throws(() => new Client(broker.target, { tls }), {
      message: "tls ca is not PEM; give PEM, or the path of a PEM file",
    });
  }
  assert.throws(() => new Client(broker.target, { tls: { caFile: "ca.pem" } }), {
    message: '"caFile" is not an option of tls; they are ca, cert, key, serverName',
  });
});

test("files that were replaced are used by the next connection", async (context) => {
  const folder = folderOf(context);
  folder.put("cert", "client.pem");
  folder.put("key", "client.key");
  const tls = { ca: certificate("ca.pem"), cert: folder.path("cert"), key: folder.path("key") };
  const port = await freePort();
  const credentials = tlsCredentials({ isMutual: true });
  let broker = await ScriptedBroker.start(context, { port, credentials, scripts: IDLE });
  const { client, kinds } = connect(context, broker.target, { tls });
  const restart = async () => {
    const lost = kinds().length + 1;
    broker.stop();
    await until(() => kinds().length >= lost, "the loss");
    broker = await ScriptedBroker.start(context, { port, credentials, scripts: IDLE });
    await call(client);
    await client.deleteQueue("q");
    return broker.seen.at(-1).peer;
  };
  await call(client);
  assert.equal(broker.seen[0].peer, "client");
  folder.put("cert", "server.pem");
  // Half of a pair does not fit, so what there was is used.
  assert.equal(await restart(), "client");
  folder.put("key", "server.key");
  assert.equal(await restart(), "server");
});

test("a CA that is not whole does not replace the one before", async (context) => {
  const folder = folderOf(context);
  folder.put("ca", "ca.pem");
  const port = await freePort();
  const credentials = tlsCredentials();
  const broker = await ScriptedBroker.start(context, { port, credentials, scripts: IDLE });
  const { client, kinds } = connect(context, broker.target, { tls: { ca: folder.path("ca") } });
  await call(client);
  const whole = readFileSync(folder.path("ca"));
  writeFileSync(folder.path("ca"), whole.subarray(0, whole.length / 2));
  broker.stop();
  await until(() => kinds().length >= 2, "the loss");
  await ScriptedBroker.start(context, { port, credentials, scripts: IDLE });
  await call(client);
});

test("files that are replaced while nobody can be reached are used too", async (context) => {
  const folder = folderOf(context);
  folder.put("ca", "other_ca.pem");
  const broker = await ScriptedBroker.start(context, { credentials: tlsCredentials() });
  const { client, kinds } = connect(context, broker.target, { tls: { ca: folder.path("ca") } });
  await assert.rejects(client.ping(), UnavailableError);
  await until(() => kinds().length === 1);
  folder.put("ca", "ca.pem");
  await call(client);
  assert.deepEqual(kinds(), ["unreachable", "connected"]);
});

test("each of several addresses is held to its own name", async (context) => {
  const broker = await ScriptedBroker.start(context, { credentials: tlsCredentials() });
  const tls = { ca: certificate("ca.pem") };
  // The certificate is for localhost and 127.0.0.1. This address leads to the same broker.
  const relay = createServer((socket) => {
    const onward = connectTo(broker.port, "127.0.0.1");
    for (const end of [socket, onward]) end.on("error", () => undefined);
    socket.pipe(onward).pipe(socket);
  });
  relay.listen(0, "127.0.0.2");
  await once(relay, "listening");
  context.after(() => relay.close());
  const foreign = `127.0.0.2:${relay.address().port}`;
  const { client, told } = connect(context, [foreign, `localhost:${broker.port}`], { tls });
  await client.ping();
  assert.equal(told[0].address, `localhost:${broker.port}`);
  const alone = connect(context, foreign, { tls }).client;
  await assert.rejects(alone.ping(), UnavailableError);
  const named = connect(context, foreign, { tls: { ...tls, serverName: "localhost" } }).client;
  await named.ping();
});

// --- Interceptors --------------------------------------------------------------------------------

test("interceptors see calls and streams", async (context) => {
  const broker = await ScriptedBroker.start(context);
  broker.script("DeleteQueue", () => ({}));
  broker.script("Consume", framesThenIdle(frame("a")));
  const seen = [];
  const interceptor = (options, next) =>
    new InterceptingCall(next(options), {
      start(metadata, listener, proceed) {
        seen.push(options.method_definition.path.split("/").at(-1));
        metadata.set("x-mine", "yes");
        proceed(metadata, listener);
      },
    });
  const { client } = connect(context, broker.target, { interceptors: [interceptor] });
  await client.deleteQueue("orders");
  await client.enqueue("orders");
  await client.consume("orders").next();
  assert.deepEqual(seen, ["DeleteQueue", "Pipeline", "Consume"]);
  for (const { metadata } of broker.seen) assert.equal(metadata["x-mine"], "yes");
});

// SPDX-License-Identifier: AGPL-3.0-only
// Operators' calls carry what they were given, and answers come back as plain values.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, Message } from "@fila/client";

import { ScriptedBroker, message, types } from "./broker.js";

const MOMENT = new Date("2030-01-02T03:04:05.678Z");

async function start(context) {
  const broker = await ScriptedBroker.start(context);
  const client = new Client(broker.target, { timeoutMs: 60_000 });
  context.after(() => client.close());
  return { broker, client };
}

/** Answers a method, and returns what makes the call and gives back [request, result]. */
function exchange(broker, method, answer = {}) {
  broker.script(method, () => answer);
  return async (call) => {
    const result = await call;
    return [broker.requests(method).at(-1), result];
  };
}

const SETTINGS = {
  onEnqueueScript: "function on_enqueue(msg) end",
  onFailureScript: "function on_failure(msg) end",
  visibilityTimeoutMs: 1,
  maxAttempts: 2,
  retryDelayMs: 3,
  retryDelayMaxMs: 4,
  defaultTtlMs: 5,
  idempotencyWindowMs: 6,
  maxMessages: 2 ** 40,
  onHookError: "reject",
  hookTimeoutMs: 8,
  hookMemoryLimitBytes: 9,
  quantum: 10,
};

test("a queue is created with its settings", async (context) => {
  const { broker, client } = await start(context);
  const create = exchange(broker, "CreateQueue", { deadLetterQueue: "orders.dlq" });
  const [bare, name] = await create(client.createQueue("orders"));
  assert.deepEqual(bare, { name: "orders", config: types.QueueConfig.create() });
  assert.equal(name, "orders.dlq");
  const [full] = await create(client.createQueue("orders", SETTINGS));
  assert.deepEqual(full.config, { ...SETTINGS, onHookError: types.HookErrorPolicy.REJECT });
  const [partial] = await create(client.createQueue("orders", { quantum: undefined }));
  assert.deepEqual(partial.config, types.QueueConfig.create());
});

test("an update names what it changes, in the contract's words", async (context) => {
  const { broker, client } = await start(context);
  const config = { ...SETTINGS, onHookError: types.HookErrorPolicy.UNSPECIFIED };
  const update = exchange(broker, "UpdateQueue", { config });
  const settings = { maxAttempts: 0, onHookError: "default", quantum: undefined };
  const [request, result] = await update(client.updateQueue("orders", settings));
  assert.deepEqual(request.updateMask, ["max_attempts", "on_hook_error"]);
  assert.equal(request.config.onHookError, types.HookErrorPolicy.DEFAULT);
  assert.deepEqual(result, { ...SETTINGS, onHookError: "default" });
  const [all] = await update(client.updateQueue("orders", SETTINGS));
  const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  assert.deepEqual(all.updateMask, Object.keys(SETTINGS).map(snake));
});

test("a wrong setting is named and never sent", async (context) => {
  const { broker, client } = await start(context);
  for (const [settings, expected] of [
    [{ maxAttempt: 1 }, /^"maxAttempt" is not a setting of a queue; they are defaultTtlMs, /],
    [{ quantum: null }, /^setting quantum must not be null; 0 or an empty text mean the default$/],
    [{ quantum: -1 }, /^quantum must be a whole number from 0 to 4294967295, got -1$/],
    [{ onHookError: "explode" }, /^onHookError must be default or reject, got "explode"$/],
    [{ onEnqueueScript: 5 }, /^onEnqueueScript must be a string, not number$/],
  ]) {
    await assert.rejects(client.createQueue("q", settings), { message: expected });
    await assert.rejects(client.updateQueue("q", settings), { message: expected });
  }
  assert.deepEqual(broker.seen, []);
});

test("queues are listed", async (context) => {
  const { broker, client } = await start(context);
  const row = {
    name: "orders",
    depth: Number.MAX_SAFE_INTEGER,
    inFlight: 1,
    activeConsumers: 2,
    leaderNodeId: 3,
    paused: true,
    deadLetterOf: "",
    delayed: 4,
    counters: {
      enqueued: 5,
      delivered: 6,
      acked: 7,
      nacked: 8,
      expired: 9,
      deadLettered: 10,
      timedOut: 11,
      duplicates: 12,
    },
    oldestPendingAgeMs: 13,
    throttled: 14,
    deadLetters: 15,
  };
  const list = exchange(broker, "ListQueues", { queues: [row] });
  const [, rows] = await list(client.listQueues());
  assert.deepEqual(rows, [row]);
});

const THROTTLE = {
  key: "mail",
  tokens: 0.5,
  ratePerSecond: 1.5,
  burst: 2,
  passed: 3,
  blocked: 4,
  concurrencyLimit: 5,
  inFlight: 6,
  pausedUntil: MOMENT,
  waiting: 7,
  passedPerSecond: 8.5,
  blockedPerSecond: 9.5,
  pattern: "mai*",
  unset: true,
  paused: true,
};
const RAW_FAILURES = [
  { failedAt: MOMENT, cause: types.FailureCause.MAX_ATTEMPTS, error: "boom" },
  { failedAt: undefined, cause: 99, error: "" },
];
const FAILURES = [
  { failedAt: MOMENT, cause: "max_attempts", error: "boom" },
  { failedAt: null, cause: null, error: "" },
];

test("throttle keys are listed, paused and resumed", async (context) => {
  const { broker, client } = await start(context);
  const list = exchange(broker, "ListThrottles", { throttles: [THROTTLE], totalCount: 7 });
  const page = { throttles: [THROTTLE], totalCount: 7 };
  const all = { prefix: "", unset: false, limit: 0 };
  assert.deepEqual(await list(client.listThrottles()), [all, page]);
  const options = { unset: true, limit: 1 };
  const narrowed = { prefix: "mail", ...options };
  assert.deepEqual(await list(client.listThrottles("mail", options)), [narrowed, page]);
  const pause = exchange(broker, "Pause");
  const stripe = { queue: "", fairnessKey: "", throttleKey: "stripe" };
  const forNow = [{ ...stripe, durationMs: 0 }, undefined];
  assert.deepEqual(await pause(client.pauseThrottle("stripe")), forNow);
  const aMinute = [{ ...stripe, durationMs: 60_000 }, undefined];
  const limited = client.pauseThrottle("stripe", { durationMs: 60_000 });
  assert.deepEqual(await pause(limited), aMinute);
  const resume = exchange(broker, "Resume");
  assert.deepEqual(await resume(client.resumeThrottle("stripe")), [stripe, undefined]);
});

test("stats are read in full", async (context) => {
  const { broker, client } = await start(context);
  const key = { key: "acme", currentDeficit: -(2 ** 50), weight: 1, paused: true };
  const answer = {
    depth: 1,
    roundKey: "zeta",
    leaderNodeId: 2,
    replicationCount: 3,
    perKeyStats: [key, { key: "zeta", roundPosition: 0 }],
    perThrottleStats: [THROTTLE, { ...THROTTLE, pausedUntil: undefined }],
    counters: { enqueued: 7 },
    config: { maxAttempts: 3 },
    hooks: { calls: 9, lastError: "boom" },
  };
  const ask = exchange(broker, "GetStats", answer);
  const [request, stats] = await ask(client.stats("orders", { maxKeys: 5 }));
  assert.deepEqual(request, { queue: "orders", maxKeys: 5 });
  assert.equal(stats.depth, 1);
  assert.equal(stats.perKeyStats[0].currentDeficit, -(2 ** 50));
  assert.deepEqual(stats.perKeyStats.map((row) => row.roundPosition), [null, 0]);
  assert.deepEqual(stats.perThrottleStats, [THROTTLE, { ...THROTTLE, pausedUntil: null }]);
  const { roundKey, leaderNodeId, replicationCount } = stats;
  assert.deepEqual([roundKey, leaderNodeId, replicationCount], ["zeta", 2, 3]);
  assert.deepEqual([stats.counters.enqueued, stats.config.maxAttempts], [7, 3]);
  assert.deepEqual([stats.config.onHookError, stats.hooks.lastError], ["default", "boom"]);
  broker.script("GetStats", () => ({}));
  const empty = await client.stats("orders");
  assert.deepEqual([empty.hooks, empty.counters.acked, empty.config.quantum], [null, 0, 0]);
});

test("a number beyond what JavaScript can tell apart is not rounded", async (context) => {
  const { broker, client } = await start(context);
  const original = types.PurgeResponse.encode;
  const huge = Buffer.from([0x08, ...Array(9).fill(0xff), 0x01]);
  types.PurgeResponse.encode = () => ({ finish: () => huge });
  context.after(() => {
    types.PurgeResponse.encode = original;
  });
  broker.script("Purge", () => ({}));
  await assert.rejects(client.purge("orders"), { name: "InternalError" });
});

test("peek shows messages and where to go on", async (context) => {
  const { broker, client } = await start(context);
  const failed = message("a");
  failed.metadata.failures = RAW_FAILURES;
  const rows = [
    { message: failed, state: types.MessageState.DELAYED, position: 7 },
    { message: message("b"), state: 99, position: 8 },
  ];
  const ask = exchange(broker, "Peek", { messages: rows, nextPosition: 9, endPosition: 20 });
  const [bare] = await ask(client.peek("orders"));
  assert.deepEqual(bare, types.PeekRequest.create({ queue: "orders", limit: 10 }));
  const options = {
    limit: 2,
    fromPosition: 3,
    untilPosition: 4,
    fairnessKey: "acme",
    excludePayload: true,
  };
  const [full, page] = await ask(client.peek("orders", { ...options, state: "leased" }));
  const state = types.MessageState.LEASED;
  assert.deepEqual(full, { queue: "orders", ...options, state });
  assert.deepEqual([page.nextPosition, page.endPosition], [9, 20]);
  assert.deepEqual(page.messages.map((row) => [row.message.id, row.state, row.position]), [
    ["a", "delayed", 7],
    ["b", null, 8],
  ]);
  assert.deepEqual(page.messages[0].message.failures, FAILURES);
  assert.ok(page.messages[0].message instanceof Message);
  assert.ok(!("ack" in page.messages[0].message));
  const wrong = client.peek("orders", { state: "lost" });
  await assert.rejects(wrong, /state must be one of pending, delayed, leased, got "lost"/);
});

test("every state that peek takes has the contract's number", async (context) => {
  const { broker, client } = await start(context);
  const ask = exchange(broker, "Peek");
  for (const state of ["pending", "delayed", "leased"]) {
    const [request] = await ask(client.peek("orders", { state }));
    assert.equal(request.state, types.MessageState[state.toUpperCase()]);
  }
});

test("purge, pause and resume take one fairness key or all", async (context) => {
  const { broker, client } = await start(context);
  const options = { fairnessKey: "acme" };
  const narrowed = { queue: "orders", ...options };
  const all = { queue: "orders", fairnessKey: "" };
  const purge = exchange(broker, "Purge", { purged: 4 });
  assert.deepEqual(await purge(client.purge("orders")), [all, 4]);
  assert.deepEqual(await purge(client.purge("orders", options)), [narrowed, 4]);
  for (const [method, name, others] of [
    ["Pause", "pause", { throttleKey: "", durationMs: 0 }],
    ["Resume", "resume", { throttleKey: "" }],
  ]) {
    const change = exchange(broker, method);
    const [whole] = await change(client[name]("orders"));
    assert.deepEqual(whole, { ...all, ...others });
    const [one] = await change(client[name]("orders", options));
    assert.deepEqual(one, { ...narrowed, ...others });
  }
});

test("redrive can be narrowed", async (context) => {
  const { broker, client } = await start(context);
  const redrive = exchange(broker, "Redrive", { redriven: 2 });
  const [bare, count] = await redrive(client.redrive("orders.dlq"));
  assert.deepEqual(bare, types.RedriveRequest.create({ dlqQueue: "orders.dlq" }));
  assert.equal(count, 2);
  const options = { count: 5, fairnessKey: "acme", errorContains: "boom", messageIds: ["a", "b"] };
  const [full] = await redrive(client.redrive("orders.dlq", options));
  assert.deepEqual(full, { dlqQueue: "orders.dlq", ...options });
});

test("one message is cancelled, and a queue deleted", async (context) => {
  const { broker, client } = await start(context);
  const cancel = exchange(broker, "CancelMessage");
  const expected = { queue: "orders", messageId: "m" };
  assert.deepEqual(await cancel(client.cancel("orders", "m")), [expected, undefined]);
  const gone = { messages: 3, deadLetters: 2 };
  const remove = exchange(broker, "DeleteQueue", gone);
  const request = { queue: "orders", keepDeadLetters: false };
  assert.deepEqual(await remove(client.deleteQueue("orders")), [request, gone]);
  const kept = client.deleteQueue("orders", { keepDeadLetters: true });
  assert.deepEqual(await remove(kept), [{ ...request, keepDeadLetters: true }, gone]);
});

test("explain says why, with reasons by name", async (context) => {
  const { broker, client } = await start(context);
  const kinds = Object.keys(types.WaitKind).filter((name) => Number.isNaN(Number(name)));
  const answer = {
    summary: "waits",
    reasons: [
      ...kinds.map((name) => ({ kind: types.WaitKind[name], detail: name, until: MOMENT })),
      { kind: 99 },
    ],
    estimatedAt: MOMENT,
    state: types.MessageState.PENDING,
    ahead: 3,
    failures: RAW_FAILURES,
    unsetThrottleKeys: ["mail", "sms"],
  };
  const ask = exchange(broker, "Explain", answer);
  const options = { fairnessKey: "acme", messageId: "m" };
  const [request, found] = await ask(client.explain("orders", options));
  assert.deepEqual(request, { queue: "orders", ...options });
  assert.deepEqual([found.summary, found.state, found.ahead], ["waits", "pending", 3]);
  assert.deepEqual(found.estimatedAt, MOMENT);
  assert.deepEqual(found.failures, FAILURES);
  assert.deepEqual(found.unsetThrottleKeys, ["mail", "sms"]);
  assert.deepEqual(found.reasons.map(({ kind }) => kind), [
    ...[null, "throttled", "concurrency", "turn", "delayed", "paused", "no_credit", "leased"],
    ...["backpressure", "hook_bypassed", null],
  ]);
  assert.deepEqual(found.reasons.at(-1).until, null);
  broker.script("Explain", () => ({}));
  const nothing = await client.explain("orders");
  assert.deepEqual([nothing.state, nothing.estimatedAt, nothing.reasons], [null, null, []]);
});

test("runtime configuration is written and read", async (context) => {
  const { broker, client } = await start(context);
  const pair = { key: "throttle:mail:rate", value: "5" };
  const set = exchange(broker, "SetConfig");
  const one = [{ ...pair, entries: [] }, undefined];
  assert.deepEqual(await set(client.setConfig(pair.key, pair.value)), one);
  const burst = { key: "throttle:mail:burst", value: "" };
  const both = client.setConfigAll({ [pair.key]: pair.value, [burst.key]: burst.value });
  assert.deepEqual(await set(both), [{ key: "", value: "", entries: [pair, burst] }, undefined]);
  const get = exchange(broker, "GetConfig", { value: "5" });
  assert.deepEqual(await get(client.getConfig(pair.key)), [{ key: pair.key }, "5"]);
  const remove = exchange(broker, "DeleteConfig");
  assert.deepEqual(await remove(client.deleteConfig(pair.key)), [{ key: pair.key }, undefined]);
  const list = exchange(broker, "ListConfig", { entries: [pair] });
  const entries = { [pair.key]: "5" };
  assert.deepEqual(await list(client.listConfig()), [{ prefix: "" }, entries]);
  assert.deepEqual(await list(client.listConfig("throttle")), [{ prefix: "throttle" }, entries]);
  await assert.rejects(client.setConfig("k", 5), /value must be a string, not number/);
});

test("API keys are created, listed and revoked", async (context) => {
  const { broker, client } = await start(context);
  const create = exchange(broker, "CreateApiKey", { keyId: "id", secret: "s" });
  const acl = [
    { permission: "produce", pattern: "a" },
    { permission: "consume", pattern: "b.*" },
    { permission: "admin", pattern: "*" },
  ];
  const raw = acl.map(({ permission, pattern }) => ({ kind: permission, pattern }));
  const options = { acl, expiresAt: MOMENT, superadmin: true };
  const [request, key] = await create(client.createApiKey("name", options));
  const expiresAtMs = MOMENT.getTime();
  assert.deepEqual(request, { name: "name", expiresAtMs, superadmin: true, acl: raw });
  const past = client.createApiKey("name", { expiresAt: new Date(0) });
  await assert.rejects(past, /^RangeError: expiresAt must be after 1970; leave it out for never$/);
  assert.deepEqual([key.keyId, key.secret], ["id", "s"]);
  const [bare] = await create(client.createApiKey("name"));
  assert.deepEqual(bare, types.CreateApiKeyRequest.create({ name: "name" }));
  const newer = { kind: "own", pattern: "x" };
  const keys = [
    { keyId: "id", name: "n", createdAt: MOMENT, superadmin: true, acl: [...raw, newer] },
    { keyId: "other", expiresAt: MOMENT },
  ];
  const list = exchange(broker, "ListApiKeys", { keys });
  const [, [first, second]] = await list(client.listApiKeys());
  assert.deepEqual(first, {
    keyId: "id",
    name: "n",
    createdAt: MOMENT,
    expiresAt: null,
    superadmin: true,
    acl: [...acl, { permission: "own", pattern: "x" }],
  });
  assert.deepEqual([second.createdAt, second.expiresAt, second.acl], [null, MOMENT, []]);
  const revoke = exchange(broker, "RevokeApiKey");
  assert.deepEqual(await revoke(client.revokeApiKey("id")), [{ keyId: "id" }, undefined]);
});

test("what an API key may do is replaced and read", async (context) => {
  const { broker, client } = await start(context);
  const acl = [{ permission: "produce", pattern: "orders" }];
  const raw = [{ kind: "produce", pattern: "orders" }];
  const set = exchange(broker, "SetAcl");
  assert.deepEqual(await set(client.setAcl("id", acl)), [{ keyId: "id", acl: raw }, undefined]);
  const get = exchange(broker, "GetAcl", { acl: raw, superadmin: true });
  const expected = { entries: acl, superadmin: true };
  assert.deepEqual(await get(client.getAcl("id")), [{ keyId: "id" }, expected]);
  const wrong = client.setAcl("id", [{ permission: "fly", pattern: "*" }]);
  await assert.rejects(wrong, /permission must be one of produce, consume, admin, got "fly"/);
});

// SPDX-License-Identifier: AGPL-3.0-only
// Every reason and every status has its type, chosen by name and never by text.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as fila from "@fila/client";

import { ScriptedBroker, refuse, status, types } from "./broker.js";

// The class and the status of every reason of the contract.
const REASONS = {
  QUEUE_NOT_FOUND: ["QueueNotFoundError", "NOT_FOUND"],
  MESSAGE_NOT_FOUND: ["MessageNotFoundError", "NOT_FOUND"],
  LEASE_EXPIRED: ["LeaseExpiredError", "FAILED_PRECONDITION"],
  QUEUE_ALREADY_EXISTS: ["QueueAlreadyExistsError", "ALREADY_EXISTS"],
  INVALID_ARGUMENT: ["InvalidArgumentError", "INVALID_ARGUMENT"],
  INVALID_SCRIPT: ["InvalidScriptError", "INVALID_ARGUMENT"],
  NOT_A_DEAD_LETTER_QUEUE: ["NotADeadLetterQueueError", "INVALID_ARGUMENT"],
  PARENT_QUEUE_NOT_FOUND: ["ParentQueueNotFoundError", "FAILED_PRECONDITION"],
  MESSAGE_TOO_LARGE: ["MessageTooLargeError", "INVALID_ARGUMENT"],
  OVERLOADED: ["OverloadedError", "RESOURCE_EXHAUSTED"],
  QUEUE_FULL: ["QueueFullError", "RESOURCE_EXHAUSTED"],
  DISK_FULL: ["DiskFullError", "RESOURCE_EXHAUSTED"],
  SHUTTING_DOWN: ["ShuttingDownError", "UNAVAILABLE"],
  UNAUTHENTICATED: ["UnauthenticatedError", "UNAUTHENTICATED"],
  PERMISSION_DENIED: ["PermissionDeniedError", "PERMISSION_DENIED"],
  STORAGE_FAILED: ["StorageFailedError", "INTERNAL"],
  HOOK_FAILED: ["HookFailedError", "FAILED_PRECONDITION"],
  CONFIG_NOT_FOUND: ["ConfigNotFoundError", "NOT_FOUND"],
  MESSAGE_LEASED: ["MessageLeasedError", "FAILED_PRECONDITION"],
  API_KEY_NOT_FOUND: ["ApiKeyNotFoundError", "NOT_FOUND"],
  INTERNAL: ["InternalError", "INTERNAL"],
};

const STATUSES = {
  ALREADY_EXISTS: "QueueAlreadyExistsError",
  CANCELLED: "CancelledError",
  DEADLINE_EXCEEDED: "DeadlineExceededError",
  INVALID_ARGUMENT: "InvalidArgumentError",
  PERMISSION_DENIED: "PermissionDeniedError",
  RESOURCE_EXHAUSTED: "ResourceExhaustedError",
  UNAUTHENTICATED: "UnauthenticatedError",
  UNAVAILABLE: "UnavailableError",
  UNIMPLEMENTED: "UnimplementedError",
  // Without a reason these say nothing that a program could act on.
  UNKNOWN: "InternalError",
  NOT_FOUND: "InternalError",
  ABORTED: "InternalError",
  OUT_OF_RANGE: "InternalError",
  FAILED_PRECONDITION: "InternalError",
  INTERNAL: "InternalError",
  DATA_LOSS: "InternalError",
};

const RETRYABLE = new Set([
  ...["OverloadedError", "QueueFullError", "DiskFullError", "ResourceExhaustedError"],
  ...["UnavailableError", "ShuttingDownError", "DeadlineExceededError"],
]);

async function start(context) {
  const broker = await ScriptedBroker.start(context);
  const client = new fila.Client(broker.target, { timeoutMs: 60_000 });
  context.after(() => client.close());
  return { broker, client };
}

/** What a call rejects with. */
async function errorOf(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  return assert.fail("the call did not fail");
}

function assertIs(error, kind, fields) {
  assert.equal(error.constructor, fila[kind], error.stack);
  assert.equal(error.name, kind);
  assert.ok(error instanceof fila.FilaError);
  assert.equal(error.retryable, RETRYABLE.has(kind), kind);
  for (const [name, value] of Object.entries(fields)) assert.equal(error[name], value, name);
}

test("the table above has every reason of the contract", () => {
  const names = Object.keys(types.ErrorReason).filter((name) => Number.isNaN(Number(name)));
  assert.deepEqual(names.sort(), ["UNSPECIFIED", ...Object.keys(REASONS)].sort());
});

test("every reason of a call has its type", async (context) => {
  const { broker, client } = await start(context);
  for (const [reason, [kind, code]] of Object.entries(REASONS)) {
    broker.script("DeleteQueue", refuse(status[code], "what happened", reason));
    const error = await errorOf(client.deleteQueue("orders", { timeoutMs: 60_000 }));
    assertIs(error, kind, { code, reason, message: "what happened", queue: "orders" });
    assert.ok(error.cause instanceof Error);
  }
});

test("every reason of an item has its type and the status that belongs to it", async (context) => {
  const { broker, client } = await start(context);
  for (const [reason, [kind, code]] of Object.entries(REASONS)) {
    const error = { reason: types.ErrorReason[reason], message: "what happened" };
    broker.script("AckBatch", () => ({ results: [{ error }] }));
    const found = await errorOf(client.ack("orders", "m-1"));
    assertIs(found, kind, { code, reason, message: "what happened", messageId: "m-1" });
  }
});

test("a reason wins over the status and over the text", async (context) => {
  const { broker, client } = await start(context);
  broker.script("DeleteQueue", refuse(status.UNKNOWN, "queue not found", "QUEUE_FULL"));
  assertIs(await errorOf(client.deleteQueue("q")), "QueueFullError", { code: "UNKNOWN" });
});

test("every status without a reason has its type", async (context) => {
  const { broker, client } = await start(context);
  for (const [code, kind] of Object.entries(STATUSES)) {
    broker.script("RevokeApiKey", refuse(status[code], "queue not found"));
    const error = await errorOf(client.revokeApiKey("key"));
    assertIs(error, kind, { code, reason: null, queue: null, message: "queue not found" });
  }
});

test("NOT_FOUND without a reason is the most specific thing that is named", async (context) => {
  const { broker, client } = await start(context);
  for (const method of ["DeleteQueue", "CancelMessage", "Explain", "EnqueueBatch", "AckBatch"]) {
    broker.script(method, refuse(status.NOT_FOUND, "nothing"));
  }
  assertIs(await errorOf(client.deleteQueue("q")), "QueueNotFoundError", { queue: "q" });
  assertIs(await errorOf(client.enqueue("q")), "QueueNotFoundError", { queue: "q" });
  assertIs(await errorOf(client.explain("q")), "QueueNotFoundError", { messageId: null });
  const named = { queue: "q", messageId: "m" };
  assertIs(await errorOf(client.cancel("q", "m")), "MessageNotFoundError", named);
  assertIs(await errorOf(client.ack("q", "m")), "MessageNotFoundError", named);
});

test("a reason that only a newer broker knows falls back", async (context) => {
  const { broker, client } = await start(context);
  broker.script("DeleteQueue", refuse(status.UNAVAILABLE, "moon phase", "MOON_PHASE"));
  const fields = { code: "UNAVAILABLE", reason: "MOON_PHASE" };
  assertIs(await errorOf(client.deleteQueue("q")), "UnavailableError", fields);
  broker.script("AckBatch", () => ({ results: [{ error: { reason: 99, message: "moon" } }] }));
  const item = { code: "INTERNAL", reason: "99", message: "moon" };
  assertIs(await errorOf(client.ack("q", "m")), "InternalError", item);
});

test("a broker that answers nonsense is an internal error", async (context) => {
  const { broker, client } = await start(context);
  broker.script("EnqueueBatch", () => ({ results: [] }));
  const error = await errorOf(client.enqueue("q"));
  assertIs(error, "InternalError", { message: "the broker gave 0 results for 1 items" });
});

test("an error without a text has its class's own", () => {
  const kinds = Object.values(fila).filter((kind) => kind.prototype instanceof fila.FilaError);
  assert.equal(kinds.length, 27);
  for (const kind of kinds) {
    const error = new kind();
    assert.match(error.message, /^(no|the|a|payload)\b/);
    assert.equal(error.name, kind.name);
    assert.ok(error.stack.startsWith(`${kind.name}: ${error.message}`), error.stack);
  }
});

test("families can be caught together", () => {
  for (const [kind, family] of [
    ["InvalidScriptError", "InvalidArgumentError"],
    ["NotADeadLetterQueueError", "InvalidArgumentError"],
    ["MessageTooLargeError", "InvalidArgumentError"],
    ["OverloadedError", "ResourceExhaustedError"],
    ["QueueFullError", "ResourceExhaustedError"],
    ["DiskFullError", "ResourceExhaustedError"],
    ["ShuttingDownError", "UnavailableError"],
    ["StorageFailedError", "InternalError"],
  ]) {
    assert.ok(new fila[kind]() instanceof fila[family], kind);
  }
});

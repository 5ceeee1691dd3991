// SPDX-License-Identifier: AGPL-3.0-only
// The conformance driver of @fila/client: requests in JSON lines become calls of its public API,
// and outcomes become replies. See conformance/PROTOCOL.md. What is absent or null in a request is
// left out of the call, so the SDK's own default holds.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import { Backpressure, Client, DeadLetter, VERSION, processing } from "@fila/client";
import { ROOT_CONTEXT, SpanKind, context, createTraceState, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";

import { operations } from "./operations.js";
import { bytes, camel, failure, produced, shown } from "./values.js";

const EXIT_AFTER_MS = 1_500;
const TIMED_OUT = Symbol("timed out");

const clients = new Map();
const consumers = new Map();
const workers = new Map();
// Requests under way by id, and what cancels them.
const running = new Map();

context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());

// A tracer that keeps what it was told about its latest span.
let told;
const tracer = {
  startSpan(name, { kind, links, attributes }, within) {
    told = {
      ...{ name, kind: SpanKind[kind].toLowerCase(), attributes },
      parent: identity(trace.getSpanContext(within)),
      links: links.map((link) => identity(link.context)),
    };
    return trace.wrapSpanContext({ traceId: "1".repeat(32), spanId: "1".repeat(16) });
  },
};
trace.setGlobalTracerProvider({ getTracer: () => tracer });

function identity(span) {
  return span ? `${span.traceId}-${span.spanId}` : "";
}

// What this language can hold and UTF-8 cannot.
const ILL_FORMED = "x\ud800y";

// --- Operations ----------------------------------------------------------------------------------

/** Takes messages from a consumer. A next() that is late is kept for the request after this one. */
async function take(held, max, waitMs, signal) {
  const messages = [];
  const late = sleep(waitMs, TIMED_OUT, { signal });
  try {
    while (messages.length < max) {
      held.pending ??= held.consumer.next();
      const result = await Promise.race([held.pending, late]);
      if (result === TIMED_OUT) break;
      held.pending = null;
      if (result.done) return { messages, ended: true };
      held.messages.set(result.value.id, result.value);
      messages.push(shown(result.value));
    }
  } catch (error) {
    // An error of the stream comes after the messages before it.
    if (messages.length === 0) {
      if (!signal.aborted) held.pending = null;
      throw error;
    }
  }
  return { messages, ended: false };
}

async function settle(message, { how, error, ms }, options) {
  if (how === "ack") await message.ack(options);
  else if (how === "nack") await message.nack(error, options);
  else return { lease_expires_at_ms: (await message.extend(ms, options)).getTime() };
  return {};
}

/** Several loops over one consumer, until they have so many messages together, or for a time. */
async function share(held, readers, count, waitMs) {
  const taken = Array.from({ length: readers }, () => []);
  let left = count;
  const read = async (ids) => {
    while (left > 0) {
      const { done, value } = await held.consumer.next();
      if (done) return;
      held.messages.set(value.id, value);
      ids.push(value.id);
      left -= 1;
      if (left <= 0) enough();
    }
  };
  let enough;
  const all = new Promise((resolve, reject) => {
    enough = resolve;
    Promise.all(taken.map(read)).then(resolve, reject);
  });
  await Promise.race([all, sleep(waitMs)]);
  return { taken };
}

/** A worker, and what its handler has done so far. */
class Work {
  #handled = [];
  #batches = [];
  #running = 0;
  #mostRunning = 0;
  #waiting = new Set();

  constructor(client, queue, options) {
    const handle = (subject, { signal }) => this.#handle([subject].flat(), signal);
    this.worker = client.worker(queue, handle, options);
    this.ended = this.worker.run({ signals: false });
    this.ended.catch(() => undefined);
  }

  async #handle(messages, signal) {
    this.#running += 1;
    this.#mostRunning = Math.max(this.#mostRunning, this.#running);
    this.#batches.push(messages.length);
    try {
      await this.#obey(messages, signal);
    } finally {
      this.#running -= 1;
      for (const { id, payload, attemptCount } of messages) {
        const text = payload.toString("base64");
        this.#handled.push({ message_id: id, payload: text, attempt_count: attemptCount });
      }
      for (const look of [...this.#waiting]) look();
    }
  }

  async #obey(messages, signal) {
    const [{ payload }] = messages;
    const told = camel(payload.length > 0 ? JSON.parse(payload.toString()) : {});
    if (told.sleepMs) await sleep(told.sleepMs, undefined, { signal });
    if (told.then === "fail") throw new Error(told.text);
    if (told.then === "dead_letter") throw new DeadLetter(told.text);
    if (told.then === "backpressure") throw new Backpressure(told);
    if (told.then === "ack") await messages[0].ack();
    if (told.then === "exit") process.exit(9);
  }

  async handled(count, waitMs) {
    const enough = new Promise((resolve) => {
      const look = () => {
        if (this.#handled.length < count) return;
        this.#waiting.delete(look);
        resolve();
      };
      this.#waiting.add(look);
      look();
    });
    await Promise.race([enough, sleep(waitMs)]);
    return {
      handled: this.#handled,
      running: this.#running,
      most_running: this.#mostRunning,
      batches: this.#batches,
    };
  }
}

/** Each operation takes the request's fields, its client and its signal. */
const all = {
  hello: () => ({
    sdk: "fila-js",
    sdk_version: VERSION,
    language: `node ${process.versions.node}`,
    features: [
      ...["tracing", "mtls", "cancel", "admin", "nack_many", "around", "error_fields"],
      ...["shared_consumer", "ill_formed_text"],
    ],
  }),

  connect({ client, target, apiKey, tls, options }) {
    const { timeoutMs, backoffInitialMs, backoffMaximumMs } = camel(options);
    const backoff = { initialMs: backoffInitialMs, maximumMs: backoffMaximumMs };
    const { caFile, certFile, keyFile, serverName } = camel(tls);
    const files = tls && { ca: caFile, cert: certFile, key: keyFile, serverName };
    clients.set(client, new Client(target, { apiKey, timeoutMs, backoff, tls: files }));
  },

  close: (fields, client) => client.close(),

  flush: ({ timeoutMs }, client, signal) => client.flush({ timeoutMs, signal }),

  async enqueue(fields, client, signal) {
    const { queue, headers, payload, ...options } = produced(fields);
    return { message_id: await client.enqueue(queue, headers, payload, { ...options, signal }) };
  },

  async enqueue_many({ messages, timeoutMs }, client, signal) {
    const items = messages.map((message) => produced(camel(message)));
    const results = await client.enqueueMany(items, { timeoutMs, signal });
    return {
      results: results.map(({ messageId, duplicate, error }) =>
        error === null ? { message_id: messageId, duplicate } : { error: failure(error) },
      ),
    };
  },

  async enqueue_concurrently({ queue, count, payload, fairnessKey }, client, signal) {
    const options = { fairnessKey, signal };
    const calls = Array.from({ length: count }, () =>
      client.enqueue(queue, undefined, bytes(payload), options),
    );
    return { message_ids: await Promise.all(calls) };
  },

  consume({ consumer, queue, ...options }, client) {
    const opened = client.consume(queue, options);
    consumers.set(consumer, { consumer: opened, pending: null, messages: new Map() });
  },

  next({ consumer, max = 1, waitMs = 0 }, client, signal) {
    return take(consumers.get(consumer), max, waitMs, signal);
  },

  stop: ({ consumer }) => consumers.get(consumer).consumer.close(),

  work({ worker, queue, ...options }, client) {
    workers.set(worker, new Work(client, queue, options));
  },

  handled: ({ worker, count = 0, waitMs = 0 }) => workers.get(worker).handled(count, waitMs),

  async stop_worker({ worker }) {
    const { worker: running, ended } = workers.get(worker);
    await running.stop();
    await ended;
  },

  async receive({ queue, ...options }, client, signal) {
    const messages = await client.receive(queue, { ...options, signal });
    return { messages: messages.map(shown) };
  },

  ack: ({ queue, messageId, ...options }, client, signal) =>
    client.ack(queue, messageId, { ...options, signal }),

  nack: ({ queue, messageId, error, ...options }, client, signal) =>
    client.nack(queue, messageId, error, { ...options, signal }),

  async extend({ queue, messageId, ...options }, client, signal) {
    const end = await client.extend(queue, messageId, { ...options, signal });
    return { lease_expires_at_ms: end.getTime() };
  },

  async ack_grant({ queue, leaseToken, ...options }, client, signal) {
    return { messages: await client.ackGrant(queue, leaseToken, { ...options, signal }) };
  },

  async nack_grant({ queue, leaseToken, error, ...options }, client, signal) {
    const messages = await client.nackGrant(queue, leaseToken, error, { ...options, signal });
    return { messages };
  },

  async extend_grant({ queue, leaseToken, ...options }, client, signal) {
    const end = await client.extendGrant(queue, leaseToken, { ...options, signal });
    return { lease_expires_at_ms: end.getTime() };
  },

  async ack_many({ consumer, messageIds }, client, signal) {
    const { messages } = consumers.get(consumer);
    const outcomes = await client.ackMany(messageIds.map((id) => messages.get(id)), { signal });
    return { results: outcomes.map((error) => error && failure(error)) };
  },

  async nack_many({ consumer, messageIds, error }, client, signal) {
    const { messages } = consumers.get(consumer);
    const deliveries = messageIds.map((id) => messages.get(id));
    const outcomes = await client.nackMany(deliveries, error, { signal });
    return { results: outcomes.map((outcome) => outcome && failure(outcome)) };
  },

  async extend_many({ consumer, messageIds, ms }, client, signal) {
    const { messages } = consumers.get(consumer);
    const deliveries = messageIds.map((id) => messages.get(id));
    const outcomes = await client.extendMany(deliveries, { ms, signal });
    return {
      results: outcomes.map((outcome) =>
        outcome instanceof Date
          ? { lease_expires_at_ms: outcome.getTime() }
          : { error: failure(outcome) },
      ),
    };
  },

  next_shared: ({ consumer, readers, count, waitMs }) =>
    share(consumers.get(consumer), readers, count, waitMs),

  async enqueue_ill_formed({ queue, where }, client, signal) {
    const headers = { header_key: { [ILL_FORMED]: "v" }, header_value: { k: ILL_FORMED } }[where];
    const options = {
      fairness_key: { fairnessKey: ILL_FORMED },
      idempotency_key: { idempotencyKey: ILL_FORMED },
    }[where];
    try {
      await client.enqueue(queue, headers, undefined, { ...options, signal });
      return { refused: false };
    } catch {
      return { refused: true };
    }
  },

  async ack_concurrently({ queue, acks }, client, signal) {
    const calls = acks.map(camel).map(({ messageId, leaseToken }) =>
      client.ack(queue, messageId, { leaseToken, signal }).then(
        () => null,
        (error) => failure(error) ?? Promise.reject(error),
      ),
    );
    return { results: await Promise.all(calls) };
  },

  settle: (fields, client, signal) =>
    settle(consumers.get(fields.consumer).messages.get(fields.messageId), fields, { signal }),

  async process({ consumer, messageId }) {
    await processing(consumers.get(consumer).messages.get(messageId), () => undefined);
    return told;
  },

  ...operations,

  cancel({ target }) {
    running.get(target)?.abort();
  },

  with_span({ traceparent, tracestate, then }, client, signal) {
    const [, traceId, spanId, flags] = traceparent.split("-");
    const traceState = tracestate && createTraceState(tracestate);
    const span = trace.wrapSpanContext({
      ...{ traceId, spanId, traceState },
      traceFlags: Number.parseInt(flags, 16),
    });
    // That span itself is active, and not a child of it; it only has to say that it records.
    span.isRecording = () => true;
    return context.with(trace.setSpan(ROOT_CONTEXT, span), () => perform(then, signal));
  },
};

// --- Requests and replies ------------------------------------------------------------------------

class Unsupported extends Error {}

async function perform(request, signal) {
  const { op, ...fields } = camel(request);
  if (!Object.hasOwn(all, op)) throw new Unsupported(`no operation "${op}"`);
  return (await all[op](fields, clients.get(fields.client), signal)) ?? {};
}

async function outcome(request, signal) {
  try {
    return { ok: await perform(request, signal) };
  } catch (error) {
    if (error instanceof Unsupported) return { unsupported: error.message };
    const found = failure(error);
    return found === undefined ? { crashed: error?.stack ?? String(error) } : { error: found };
  }
}

async function answer(line) {
  const { id, ...request } = JSON.parse(line);
  const controller = new AbortController();
  running.set(id, controller);
  const reply = await outcome(request, controller.signal);
  running.delete(id);
  process.stdout.write(`${JSON.stringify({ id, ...reply })}\n`);
}

process.on("SIGTERM", () => process.exit(0));

const answers = new Set();
const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on("line", (line) => {
  const answering = answer(line).finally(() => answers.delete(answering));
  answers.add(answering);
});
lines.on("close", async () => {
  await Promise.race([Promise.allSettled(answers), sleep(EXIT_AFTER_MS)]);
  process.exit(0);
});

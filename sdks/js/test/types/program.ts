// SPDX-License-Identifier: AGPL-3.0-only
// What users write, as a type checker sees it. Compiled and never run.

import { InterceptingCall } from "@grpc/grpc-js";

import { TestingBroker } from "@fila/client/testing";
import { Backpressure, Client, DeadLetter, FilaError, QueueNotFoundError } from "@fila/client";
import type {
  ConnectionEvent,
  ConsumeMessage,
  EnqueueMessage,
  Middleware,
  QueueStats,
  WaitKind,
} from "@fila/client";

export async function produce(client: Client, signal: AbortSignal): Promise<string[]> {
  const id: string = await client.enqueue("orders", { tenant: "acme" }, Buffer.from("hello"), {
    fairnessKey: "acme",
    throttleKeys: ["mail"],
    deliverAt: new Date(),
    timeoutMs: 1_000,
    signal,
  });
  const messages: EnqueueMessage[] = [{ queue: "orders", payload: new Uint8Array(1) }];
  const results = await client.enqueueMany(messages, { signal });
  return [id, ...results.map((result) => result.error?.reason ?? result.unwrap())];
}

export async function consume(client: Client): Promise<void> {
  for await (const message of client.consume("orders", { maxInFlight: 5 })) {
    const text: string = message.payload.toString("utf8") + (message.headers["tenant"] ?? "");
    const end: Date = await message.extend(5_000);
    if (text && end) await message.ack();
    else await message.nack("boom", { retryAfterMs: 10 });
    break;
  }
  const received: ConsumeMessage[] = await client.receive("orders", { maxMessages: 10 });
  const outcomes: (FilaError | null)[] = await client.ackMany(received);
  await client.nackMany(received, outcomes[0]?.message);
}

export async function work(client: Client, signal: AbortSignal): Promise<void> {
  const log: Middleware = async (message, next, context) => {
    const id: string = message.id;
    return context.signal.aborted ? id : await next();
  };
  const worker = client.worker(
    "orders",
    async (message, { signal }) => {
      if (message.payload.length === 0) throw new DeadLetter("empty");
      if (signal.aborted) throw new Backpressure({ retryAfterMs: 50, throttleKey: "mail" });
      await Promise.resolve();
    },
    { concurrency: 5, middleware: [log], onEvent: ({ kind }) => kind === "acked" },
  );
  await Promise.all([worker.run({ signal, signals: false }), worker.stop({ graceMs: 5 })]);
  // With a batch size the handler gets a list, and without one it does not.
  client.worker("orders", (messages) => messages.map(({ id }) => id), { batchSize: 5 });
  // @ts-expect-error a message is no list
  client.worker("orders", (messages) => messages.map(({ id }) => id), { concurrency: 5 });
  // @ts-expect-error a list is no message
  client.worker("orders", (message) => message.ack(), { batchSize: 5 });
  await client.flush({ timeoutMs: 1_000 });
}

export async function operate(client: Client): Promise<WaitKind | null | undefined> {
  await client.createQueue("orders", { maxAttempts: 3, onHookError: "reject" });
  // @ts-expect-error a setting that does not exist
  await client.createQueue("orders", { maxAttempt: 3 });
  // @ts-expect-error a payload is bytes
  await client.enqueue("orders", {}, "text");
  const stats: QueueStats = await client.stats("orders");
  // @ts-expect-error results are not changed
  stats.depth = 5;
  const key = await client.createApiKey("name", {
    acl: [{ permission: "produce", pattern: "orders" }],
  });
  await client.getAcl(key.keyId);
  return (await client.explain("orders", { fairnessKey: "a" })).reasons[0]?.kind;
}

export function nameOf(error: unknown): string | null {
  if (error instanceof QueueNotFoundError) return error.queue;
  return error instanceof FilaError && error.retryable ? error.code : null;
}

export async function connect(pem: Buffer): Promise<number> {
  await using broker = await TestingBroker.start({ config: "", timeoutMs: 5_000 });
  await using client = new Client([broker.address, "b:5555"], {
    apiKey: () => Promise.resolve("key"),
    tls: { ca: pem, cert: "client.pem", key: "client.key" },
    onConnection: ({ kind, awayMs }: ConnectionEvent) => kind === "connected" && awayMs,
    interceptors: [(options, next) => new InterceptingCall(next(options))],
  });
  await client.waitReady({ timeoutMs: 5_000 });
  const dlq: string = await client.ensureQueue("orders", { maxAttempts: 3 });
  await client.enqueue(dlq, {}, { json: { total: 17 } });
  await client.enqueueMany([{ queue: "orders", payload: { text: "hello" } }]);
  // @ts-expect-error a string is no payload
  await client.enqueue(dlq, {}, "hello");
  for await (const messages of client.consume("orders").batches(10)) {
    const ends: (Date | FilaError)[] = await client.extendMany(messages, { ms: 5_000 });
    return ends.length + messages.map(({ text }) => text).length;
  }
  return client.ping();
}

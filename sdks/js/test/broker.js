// SPDX-License-Identifier: AGPL-3.0-only
// A broker that does what a test tells it: real gRPC over loopback, answers from a script. It
// records what arrived (method, request, metadata, time left), so that tests can look at the wire
// and not at the client's inside.

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

import { Metadata, Server, ServerCredentials, status } from "@grpc/grpc-js";

import * as adminTypes from "../dist/esm/gen/fila/v1/admin.js";
import * as messageTypes from "../dist/esm/gen/fila/v1/messages.js";
import * as serviceTypes from "../dist/esm/gen/fila/v1/service.js";

export const types = { ...messageTypes, ...serviceTypes, ...adminTypes };
export { status };

const METHODS = {
  FilaService: [
    ...["Enqueue", "EnqueueBatch", "Consume", "Receive", "Ack", "Nack", "AckBatch", "NackBatch"],
    "ExtendLease",
    "SettleGrants",
  ],
  FilaAdmin: [
    ...["CreateQueue", "UpdateQueue", "DeleteQueue", "ListQueues", "GetStats", "Redrive", "Peek"],
    ...["Purge", "Pause", "Resume", "Explain", "CancelMessage", "SetConfig", "GetConfig"],
    ...["DeleteConfig", "ListConfig", "ListThrottles", "CreateApiKey", "RevokeApiKey"],
    ...["ListApiKeys", "SetAcl"],
    "GetAcl",
  ],
};

// What a pipeline's requests are, as methods.
const CALLS = {
  enqueue: "EnqueueBatch",
  ack: "AckBatch",
  nack: "NackBatch",
  extend: "ExtendLease",
  settle: "SettleGrants",
};

export class ScriptedBroker {
  /**
   * Starts one, which is stopped when the test ends. It has its scripts before it listens: a client
   * may be waiting for its port.
   */
  static async start(
    context,
    {
      port = 0,
      credentials = ServerCredentials.createInsecure(),
      hasPipelines = true,
      scripts = {},
    } = {},
  ) {
    const broker = new ScriptedBroker(credentials, hasPipelines);
    Object.assign(broker.scripts, scripts);
    broker.listener.listen(port, "127.0.0.1");
    await once(broker.listener, "listening");
    broker.port = broker.listener.address().port;
    context.after(() => {
      broker.stop();
    });
    return broker;
  }

  constructor(credentials, hasPipelines) {
    this.seen = [];
    // The streams of pipelines that were opened, oldest first.
    this.pipelines = [];
    this.stored = 0;
    this.scripts = {
      EnqueueBatch: (request) => this.store(request),
      AckBatch: ({ acks }) => ({ results: acks.map(() => ({})) }),
      NackBatch: ({ nacks }) => ({ results: nacks.map(() => ({})) }),
      ExtendLease: ({ extensions }) => ({
        results: extensions.map(() => ({ leaseExpiresAt: new Date(1_900_000_000_000) })),
      }),
    };
    this.server = new Server({ "grpc.max_receive_message_length": 64 << 20 });
    const injector = this.server.createConnectionInjector(credentials);
    this.sockets = new Set();
    this.listener = createServer((socket) => {
      this.sockets.add(socket);
      injector.injectConnection(socket);
    });
    for (const [service, methods] of Object.entries(METHODS)) {
      for (const method of methods) this.#serve(service, method);
    }
    if (hasPipelines) this.#servePipelines();
    this.#serveHealth();
  }

  get target() {
    return `127.0.0.1:${this.port}`;
  }

  script(method, answer) {
    this.scripts[method] = answer;
  }

  calls(method) {
    return this.seen.filter((call) => call.method === method);
  }

  requests(method) {
    return this.calls(method).map((call) => call.request);
  }

  /** Ends as a process does that is killed: connections drop, and nobody says goodbye. */
  stop() {
    this.listener.close();
    for (const socket of this.sockets) socket.destroy();
    this.server.forceShutdown();
  }

  /** The id of a message is its payload and a number, so that tests can tell whose it is. */
  store({ messages }) {
    const results = messages.map(({ payload }) => {
      this.stored += 1;
      return { messageId: `${payload.toString()}#${this.stored}` };
    });
    return { results };
  }

  #serve(service, method) {
    const request = types[`${method}Request`];
    const response = types[`${method}Response`];
    const isStream = method === "Consume";
    const definition = {
      path: `/fila.v1.${service}/${method}`,
      requestStream: false,
      responseStream: isStream,
      requestDeserialize: (bytes) => request.decode(bytes),
      requestSerialize: (value) => value,
      responseSerialize: (value) => Buffer.from(response.encode(response.create(value)).finish()),
      responseDeserialize: (bytes) => bytes,
    };
    const handle = isStream ? this.#stream(method) : this.#unary(method);
    this.server.addService({ [method]: definition }, { [method]: handle });
  }

  #unary(method) {
    return (call, answer) => {
      this.#record(method, call);
      Promise.resolve()
        .then(() => this.scripts[method](call.request, call))
        .then(
          (response) => answer(null, response ?? {}),
          (error) => answer(error),
        );
    };
  }

  #stream(method) {
    return async (call) => {
      this.#record(method, call);
      try {
        for await (const frame of this.scripts[method](call.request, call)) call.write(frame);
        call.end();
      } catch (error) {
        call.emit("error", error);
      }
    };
  }

  #servePipelines() {
    const { PipelineRequest, PipelineResponse } = types;
    const definition = {
      path: "/fila.v1.FilaService/Pipeline",
      requestStream: true,
      responseStream: true,
      requestDeserialize: (bytes) => PipelineRequest.decode(bytes),
      requestSerialize: (value) => value,
      responseSerialize: (value) =>
        Buffer.from(PipelineResponse.encode(PipelineResponse.fromPartial(value)).finish()),
      responseDeserialize: (bytes) => bytes,
    };
    this.server.addService({ pipeline: definition }, { pipeline: (call) => this.#pipeline(call) });
  }

  // Requests overlap and answers leave in order. A refusal that has a reason is the request's; one
  // without is a failure of the connection, and ends the stream.
  async #pipeline(call) {
    const pipeline = { call, isEnded: false, isCancelled: false };
    this.pipelines.push(pipeline);
    call.on("cancelled", () => {
      pipeline.isCancelled = true;
    });
    let last = Promise.resolve();
    call.on("data", (request) => {
      const [field] = Object.keys(CALLS).filter((name) => request[name] !== undefined);
      const method = CALLS[field];
      const metadata = call.metadata.getMap();
      this.seen.push({ method, request: request[field], metadata, timeMs: null, pipeline });
      const answer = Promise.resolve().then(() => this.scripts[method](request[field], call));
      answer.catch(() => undefined);
      last = last.then(async () => {
        try {
          call.write({ [field]: (await answer) ?? {} });
        } catch (error) {
          const reason = error.metadata?.get("fila-reason")[0];
          if (reason === undefined) throw error;
          call.write({ error: { reason: types.ErrorReason[reason], message: error.details } });
        }
      });
      last.catch((error) => call.emit("error", error));
    });
    call.on("end", () => {
      pipeline.isEnded = true;
      last.then(
        () => call.end(),
        () => undefined,
      );
    });
  }

  // What the health service says: 1 is SERVING, and an empty answer is UNKNOWN.
  #serveHealth() {
    this.script("Check", () => Buffer.from([0x08, 1]));
    const bytes = (value) => value;
    const definition = {
      path: "/grpc.health.v1.Health/Check",
      ...{ requestStream: false, responseStream: false },
      ...{ requestDeserialize: bytes, requestSerialize: bytes },
      ...{ responseDeserialize: bytes, responseSerialize: bytes },
    };
    this.server.addService({ check: definition }, { check: this.#unary("Check") });
  }

  #record(method, call) {
    const deadline = call.getDeadline();
    const timeMs = deadline === Infinity ? null : Number(deadline) - Date.now();
    const metadata = call.metadata.getMap();
    const peer = call.getAuthContext().sslPeerCertificate?.subject.CN;
    this.seen.push({ method, request: call.request, metadata, timeMs, peer });
  }
}

/** A delivered message as the broker would send it. */
export function message(id, { queue = "orders", ...fields } = {}) {
  const metadata = { queueId: queue, fairnessKey: "default", leaseToken: `token-of-${id}` };
  return { id, headers: new Map(), payload: Buffer.alloc(0), metadata, ...fields };
}

export function frame(...ids) {
  return { messages: ids.map((id) => message(id)) };
}

/** A frame under one lease token, leased for so long. */
export function leased(leaseToken, leaseMs, ...ids) {
  // The broker's clock may be anywhere; what counts is the difference.
  const leasedAt = new Date(1_000_000_000_000);
  const leaseExpiresAt = new Date(leasedAt.getTime() + leaseMs);
  const messages = ids.map((id) => {
    const found = message(id, { timestamps: { leasedAt, leaseExpiresAt } });
    return { ...found, metadata: { ...found.metadata, leaseToken } };
  });
  return { messages };
}

/** A failure with a status, and a reason if there is one. */
export function refusal(code, details = "", reason = null) {
  const metadata = new Metadata();
  if (reason !== null) metadata.set("fila-reason", reason);
  return Object.assign(new Error(details), { code, details, metadata });
}

/** A script that fails every call; for streams too. */
export function refuse(...reasons) {
  return () => {
    throw refusal(...reasons);
  };
}

/** A script for Consume: these frames, then an open stream; `ended` when the client leaves. */
export function framesThenIdle(...frames) {
  const script = async function* (request, call) {
    yield* frames;
    await idle(call);
    script.ended = true;
  };
  script.ended = false;
  return script;
}

/** Keeps a stream open until its client ends it. */
export function idle(call) {
  return new Promise((resolve) => {
    if (call.cancelled) resolve();
    else call.on("cancelled", resolve);
  });
}

/** Holds requests of one method until it is opened. */
export class Gate {
  constructor(broker, method = "EnqueueBatch") {
    const answer = broker.scripts[method];
    const opened = new Promise((resolve) => {
      this.open = resolve;
    });
    broker.script(method, async (request, call) => {
      await opened;
      return answer(request, call);
    });
  }
}

let nextPort = 20_000 + Math.floor(Math.random() * 12_000);

/**
 * A port where nobody listens, for brokers that come later or again. No other test is given it, and
 * no connection: of the ephemeral range, whoever listens on port 0 could take it meanwhile, and a
 * client that tries to connect there may find itself.
 */
export async function freePort() {
  for (;;) {
    nextPort = nextPort < 32_000 ? nextPort + 1 : 20_000;
    const probe = createServer();
    const isFree = await new Promise((resolve) => {
      probe.once("error", () => resolve(false));
      probe.listen(nextPort, "127.0.0.1", () => probe.close(() => resolve(true)));
    });
    if (isFree) return nextPort;
  }
}

/** Waits for what the broker has sent: what is answered later arrives later. */
export async function arrived(broker, client) {
  broker.script("GetConfig", () => ({}));
  await client.getConfig("unknown");
}

/** Polls until it is so. */
export async function until(condition, what = "it") {
  const deadline = Date.now() + 20_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`${what} did not happen in time`);
    await sleep(5);
  }
}

export function certificate(name) {
  return new URL(`certs/${name}`, import.meta.url).pathname;
}

export function tlsCredentials({ isMutual = false } = {}) {
  const ca = isMutual ? readFileSync(certificate("ca.pem")) : null;
  const pair = {
    private_key: readFileSync(certificate("server.key")),
    cert_chain: readFileSync(certificate("server.pem")),
  };
  return ServerCredentials.createSsl(ca, [pair], isMutual);
}

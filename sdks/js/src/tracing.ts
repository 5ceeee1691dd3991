// SPDX-License-Identifier: AGPL-3.0-only
// W3C trace context of the active span, for message headers and for gRPC metadata, and the way
// back: from a message to the context that sent it, and to a span around its handling.
//
// Only the API's public calls are used, and only where the application has installed it. Injecting
// and extracting are written out because the API has no propagator of its own, and the
// application's may speak another format than the contract.

import type { Context, SpanContext, Span } from "@opentelemetry/api";

import { wordsOf } from "./errors.js";
import type { Message } from "./message.js";
import { load } from "./otel.cjs";
import type { OtelApi } from "./otel.cjs";
import { VERSION } from "./version.js";

/** Header names and values; undefined where no span is recording. */
export type TraceContext = Readonly<Record<string, string>> | undefined;

/** OpenTelemetry's context, spelled out so that its types are no dependency. */
export interface OtelContext {
  getValue(key: symbol): unknown;
  setValue(key: symbol, value: unknown): OtelContext;
  deleteValue(key: symbol): OtelContext;
}

/** The part of OpenTelemetry's span that handlers use. */
export interface OtelSpan {
  spanContext(): { readonly traceId: string; readonly spanId: string; readonly traceFlags: number };
  setAttribute(key: string, value: string | number | boolean): unknown;
  addEvent(name: string): unknown;
  isRecording(): boolean;
}

export const TRACEPARENT = "traceparent";
const TRACESTATE = "tracestate";

// A version after 00 may go on after a dash.
const FORM = /^(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const ZEROS = /^0*$/;

// Looked for once, by the first call.
let loaded: { readonly api: OtelApi | null } | null = null;

function otel(): OtelApi | null {
  loaded ??= { api: load() };
  return loaded.api;
}

/** `traceparent`, and `tracestate` if there is one, of the recording span. */
export function currentTrace(): TraceContext {
  const api = otel();
  const span = api?.trace.getSpan(api.context.active());
  if (!span?.isRecording()) return undefined;
  const { traceId, spanId, traceFlags, traceState } = span.spanContext();
  const flags = traceFlags.toString(16).padStart(2, "0");
  const headers: Record<string, string> = { [TRACEPARENT]: `00-${traceId}-${spanId}-${flags}` };
  const state = traceState?.serialize();
  if (state) headers[TRACESTATE] = state;
  return headers;
}

/**
 * The current context with the span that sent the message in it, for use with OpenTelemetry; the
 * current one as it is if the message carries none. Undefined where OpenTelemetry's API is not
 * installed.
 */
export function extract(message: Message): OtelContext | undefined {
  const api = otel();
  if (api === null) return undefined;
  return below(api, api.context.active(), senderOf(api, message));
}

/**
 * Handles a message inside a consumer's span, which is active meanwhile, and gives what the handler
 * gives. The span is linked to the one that sent the message, and is its child unless a span is
 * active already; it is undefined where OpenTelemetry's API is not installed. A handler that fails
 * ends it as failed, and its error is thrown.
 */
export function processing<T>(
  message: Message,
  handle: (span: OtelSpan | undefined) => T | PromiseLike<T>,
): Promise<T> {
  return processingAll([message], handle);
}

/** As `processing`, for a batch: linked to all senders, and child of none if there are several. */
export async function processingAll<T>(
  messages: readonly Message[],
  handle: (span: OtelSpan | undefined) => T | PromiseLike<T>,
): Promise<T> {
  const api = otel();
  const [first] = messages;
  if (api === null || first === undefined) return handle(undefined);
  const active = api.context.active();
  const senders = messages.flatMap((message) => senderOf(api, message) ?? []);
  const isTraced = !ZEROS.test(api.trace.getSpanContext(active)?.traceId ?? "");
  const sender = messages.length === 1 ? senders[0] : undefined;
  const parent = isTraced ? active : below(api, active, sender);
  const span = api.trace.getTracer("fila", VERSION).startSpan(
    `process ${first.queue}`,
    {
      kind: api.SpanKind.CONSUMER,
      links: senders.map((context) => ({ context })),
      attributes: {
        "messaging.system": "fila",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": first.queue,
        ...(messages.length === 1
          ? { "messaging.message.id": first.id, fairness_key: first.fairnessKey }
          : { "messaging.batch.message_count": messages.length }),
      },
    },
    parent,
  );
  try {
    return await api.context.with(api.trace.setSpan(parent, span), () => handle(span));
  } catch (error) {
    fail(api, span, error);
    throw error;
  } finally {
    span.end();
  }
}

function fail(api: OtelApi, span: Span, error: unknown): void {
  const cause = error instanceof Error ? error : new Error(wordsOf(error));
  span.recordException(cause);
  span.setAttribute("error.type", cause.name);
  span.setStatus({ code: api.SpanStatusCode.ERROR, message: cause.message });
}

function below(api: OtelApi, context: Context, sender: SpanContext | undefined): Context {
  return sender ? api.trace.setSpanContext(context, sender) : context;
}

/** The span that a message's headers name, if they do. */
function senderOf(api: OtelApi, { headers }: Message): SpanContext | undefined {
  const match = FORM.exec(headers[TRACEPARENT]?.trim() ?? "");
  if (!match) return undefined;
  const [, version, traceId = "", spanId = "", flags = "", rest] = match;
  if (version === "00" && rest !== undefined) return undefined;
  if (ZEROS.test(traceId) || ZEROS.test(spanId)) return undefined;
  const state = headers[TRACESTATE];
  return {
    traceId,
    spanId,
    traceFlags: parseInt(flags, 16) & 1,
    isRemote: true,
    ...(state ? { traceState: api.createTraceState(state) } : {}),
  };
}

// SPDX-License-Identifier: AGPL-3.0-only
// W3C trace context of the active span, for message headers and for gRPC metadata, and the way
// back: from a message to the context that sent it, and to a span around its handling.
//
// Nothing is imported. Every copy of @opentelemetry/api in a process shares one global, under a
// symbol that its 1.x line keeps so that copies of several versions work together; it exists once
// the application has set OpenTelemetry up. Who does not trace pays for one lookup, and ESM and
// CommonJS builds see the same span. Injecting and extracting are written out because the API has
// no propagator of its own, and the application's may speak another format than the contract.

import type {
  Context,
  ContextManager,
  Span,
  SpanContext,
  SpanKind,
  SpanStatusCode,
  TracerProvider,
} from "@opentelemetry/api";

import type { Message } from "./message.js";
import { RemoteSpan, RemoteState } from "./remote.js";
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

const API = Symbol.for("opentelemetry.js.api.1");
const SPAN = Symbol.for("OpenTelemetry Context Key SPAN");
// A version after 00 may go on after a dash.
const FORM = /^(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const ZEROS = /^0*$/;
// The enums are the API's, and it is not imported.
const CONSUMER = 4 as unknown as SpanKind;
const ERROR = 2 as unknown as SpanStatusCode;

interface Shared {
  readonly [API]?: { readonly context?: ContextManager; readonly trace?: TracerProvider };
}

function spanOf(context: Context | undefined): Span | undefined {
  return context?.getValue(SPAN) as Span | undefined;
}

function isTraced(context: Context): boolean {
  const traceId = spanOf(context)?.spanContext().traceId;
  return traceId !== undefined && !ZEROS.test(traceId);
}

/** `traceparent`, and `tracestate` if there is one, of the recording span. */
export function currentTrace(): TraceContext {
  const span = spanOf((globalThis as Shared)[API]?.context?.active());
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
 * current one as it is if the message carries none. Undefined where OpenTelemetry is not set up.
 */
export function extract(message: Message): OtelContext | undefined {
  const context = (globalThis as Shared)[API]?.context?.active();
  return context && below(context, senderOf(message));
}

/**
 * Handles a message inside a consumer's span, which is active meanwhile, and gives what the handler
 * gives. The span is linked to the one that sent the message, and is its child unless a span is
 * active already; it is undefined where OpenTelemetry is not set up. A handler that fails ends it
 * as failed, and its error is thrown.
 */
export async function processing<T>(
  message: Message,
  handle: (span: OtelSpan | undefined) => T | PromiseLike<T>,
): Promise<T> {
  const { context: contexts, trace } = (globalThis as Shared)[API] ?? {};
  const active = contexts?.active();
  if (!contexts || !trace || !active) return handle(undefined);
  const sender = senderOf(message);
  const parent = isTraced(active) ? active : below(active, sender);
  const span = trace.getTracer("fila", VERSION).startSpan(
    `process ${message.queue}`,
    {
      kind: CONSUMER,
      links: sender ? [{ context: sender }] : [],
      attributes: {
        "messaging.system": "fila",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.queue,
        "messaging.message.id": message.id,
        fairness_key: message.fairnessKey,
      },
    },
    parent,
  );
  try {
    return await contexts.with(parent.setValue(SPAN, span), () => handle(span));
  } catch (error) {
    fail(span, error);
    throw error;
  } finally {
    span.end();
  }
}

function fail(span: Span, error: unknown): void {
  const cause = error instanceof Error ? error : new Error(String(error));
  span.recordException(cause);
  span.setAttribute("error.type", cause.name);
  span.setStatus({ code: ERROR, message: cause.message });
}

function below(context: Context, sender: SpanContext | undefined): Context {
  return sender ? context.setValue(SPAN, new RemoteSpan(sender)) : context;
}

/** The span that a message's headers name, if they do. */
function senderOf({ headers }: Message): SpanContext | undefined {
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
    ...(state ? { traceState: new RemoteState(state) } : {}),
  };
}

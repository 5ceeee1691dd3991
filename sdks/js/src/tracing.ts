// SPDX-License-Identifier: AGPL-3.0-only
// W3C trace context of the active span, for message headers and for gRPC metadata.
//
// Nothing is imported. Every copy of @opentelemetry/api in a process shares one global, under a
// symbol that its 1.x line keeps so that copies of several versions work together; it exists once
// the application has set OpenTelemetry up. Who does not trace pays for one lookup, and ESM and
// CommonJS builds see the same span. Injecting is written out because the API has no propagator of
// its own, and the application's may speak another format than the contract.

import type { Context, ContextManager, Span } from "@opentelemetry/api";

/** Header names and values; undefined where no span is recording. */
export type TraceContext = Readonly<Record<string, string>> | undefined;

export const TRACEPARENT = "traceparent";

const API = Symbol.for("opentelemetry.js.api.1");
const SPAN = Symbol.for("OpenTelemetry Context Key SPAN");

interface Shared {
  readonly [API]?: { readonly context?: ContextManager };
}

/** `traceparent`, and `tracestate` if there is one, of the recording span. */
export function currentTrace(): TraceContext {
  const context: Context | undefined = (globalThis as Shared)[API]?.context?.active();
  const span = context?.getValue(SPAN) as Span | undefined;
  if (!span?.isRecording()) return undefined;
  const { traceId, spanId, traceFlags, traceState } = span.spanContext();
  const flags = traceFlags.toString(16).padStart(2, "0");
  const headers: Record<string, string> = { [TRACEPARENT]: `00-${traceId}-${spanId}-${flags}` };
  const state = traceState?.serialize();
  if (state) headers["tracestate"] = state;
  return headers;
}

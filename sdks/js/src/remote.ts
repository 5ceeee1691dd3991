// SPDX-License-Identifier: AGPL-3.0-only
// A span of another process, and what its vendors say, as OpenTelemetry wants to see them. The API
// has both, but it is not imported; see tracing.ts.

import type { Span, SpanContext, TraceState } from "@opentelemetry/api";

/** A span that can be a parent, and that records nothing. */
export class RemoteSpan implements Span {
  readonly #context: SpanContext;

  constructor(context: SpanContext) {
    this.#context = context;
  }

  spanContext(): SpanContext {
    return this.#context;
  }

  isRecording(): boolean {
    return false;
  }

  setAttribute(): this {
    return this;
  }

  setAttributes(): this {
    return this;
  }

  addEvent(): this {
    return this;
  }

  addLink(): this {
    return this;
  }

  addLinks(): this {
    return this;
  }

  setStatus(): this {
    return this;
  }

  updateName(): this {
    return this;
  }

  end(): void {
    return;
  }

  recordException(): void {
    return;
  }
}

/** The vendors' entries, newest first; bounded as W3C says. */
export class RemoteState implements TraceState {
  readonly #entries: ReadonlyMap<string, string>;

  constructor(given: string | ReadonlyMap<string, string>) {
    this.#entries = typeof given === "string" ? parsed(given) : given;
  }

  get(key: string): string | undefined {
    return this.#entries.get(key);
  }

  set(key: string, value: string): TraceState {
    const others = [...this.#entries].filter(([name]) => name !== key);
    return new RemoteState(new Map([[key, value], ...others]));
  }

  unset(key: string): TraceState {
    return new RemoteState(new Map([...this.#entries].filter(([name]) => name !== key)));
  }

  serialize(): string {
    return [...this.#entries].map(([key, value]) => `${key}=${value}`).join(",");
  }
}

const ENTRIES_MAX = 32;
const BYTES_MAX = 512;
const KEY = /^[a-z0-9][a-z0-9_\-*/@]{0,255}$/;
const VALUE = /^[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]$/;

function parsed(text: string): Map<string, string> {
  const entries = new Map<string, string>();
  if (text.length > BYTES_MAX) return entries;
  for (const part of text.split(",").slice(0, ENTRIES_MAX)) {
    const [key = "", value = ""] = part.trim().split("=", 2);
    if (KEY.test(key) && VALUE.test(value)) entries.set(key, value);
  }
  return entries;
}

// SPDX-License-Identifier: AGPL-3.0-only
// OpenTelemetry's API, if the application has installed it: an optional peer, which has to be there
// at once and in both module formats. Only a CommonJS module can ask for it like that. Every copy
// of the API in a process works with the same providers, so it does not matter which one this is.

import type * as Api from "@opentelemetry/api";

export type OtelApi = typeof Api;

export function load(): OtelApi | null {
  try {
    return require("@opentelemetry/api") as OtelApi;
  } catch {
    return null;
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
// What the client says without being asked. Node.js has a place for each kind: a warning of the
// process is shown on standard error unless the application listens to `warning` or turns it off,
// and so needs no logger of this package's own; details are shown with NODE_DEBUG=fila.

import { debuglog } from "node:util";

export const debug = debuglog("fila");

/** What a warning is about; its `code`. */
export type WarningCode =
  | "FILA_CONNECTED"
  | "FILA_CONNECTION_LOST"
  | "FILA_UNREACHABLE"
  | "FILA_STREAM_LOST"
  | "FILA_STREAM_FOUND"
  | "FILA_SETTLE_FAILED"
  | "FILA_EVENT_HANDLER_FAILED";

export function warn(code: WarningCode, text: string): void {
  process.emitWarning(text, { type: "FilaWarning", code });
}

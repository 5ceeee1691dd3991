// SPDX-License-Identifier: AGPL-3.0-only
// What the broker is asked, and what it says when it cannot.

const ACTIVE_MS = 60_000;
const PATIENCE_MS = 30_000;

let csrf = "none";
let activeAt = Date.now();

for (const event of ["pointerdown", "keydown"]) {
  addEventListener(event, () => { activeAt = Date.now(); }, { passive: true, capture: true });
}

export class BrokerError extends Error {
  constructor(status, reason, message) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  // Only what a person does prolongs a session, not a page that polls by itself.
  if (Date.now() - activeAt < ACTIVE_MS) headers["x-fila-active"] = "1";
  let response;
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    response = await fetch(path, { ...options, headers, signal, credentials: "same-origin" });
  } catch {
    throw new BrokerError(0, "UNREACHABLE", "the broker does not answer");
  }
  const content = await response.json().catch(() => null);
  if (!response.ok || content === null) {
    const said = content?.error ?? { reason: "HTTP", message: `HTTP status ${response.status}` };
    throw new BrokerError(response.status, said.reason, said.message);
  }
  return content;
}

function post(path, content) {
  return ask(path, {
    method: "POST",
    headers: { "content-type": "application/json", "x-fila-csrf": csrf },
    body: JSON.stringify(content),
  });
}

function known(session) {
  csrf = session.csrf ?? "none";
  return session;
}

export const session = async () => known(await ask("/api/session"));
export const login = async (key) => known(await post("/api/login", { key }));
export const logout = async () => known(await post("/api/logout", {}));
export const get = (path) => ask(path);
export const call = (method, request = {}) => post(`/api/call/${method}`, request);

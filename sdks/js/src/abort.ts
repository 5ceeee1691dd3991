// SPDX-License-Identifier: AGPL-3.0-only
// Who waits for which abort. A program often gives one signal, that of its shutdown, to all its
// calls; Node.js warns of a leak when a signal has more than ten listeners. So every signal gets
// one listener, for as long as somebody waits.

const waiting = new WeakMap<AbortSignal, Set<() => void>>();

/** Calls `act` once if the signal is aborted. Returns what ends the wait; harmless twice. */
export function onAbort(signal: AbortSignal | undefined, act: () => void): () => void {
  if (signal === undefined) return nothing;
  const acts = waiting.get(signal) ?? watch(signal);
  acts.add(act);
  return () => {
    if (!acts.delete(act) || acts.size > 0 || signal.aborted) return;
    waiting.delete(signal);
    signal.removeEventListener("abort", aborted);
  };
}

function watch(signal: AbortSignal): Set<() => void> {
  const acts = new Set<() => void>();
  waiting.set(signal, acts);
  signal.addEventListener("abort", aborted, { once: true });
  return acts;
}

function aborted(this: AbortSignal): void {
  const acts = waiting.get(this) ?? [];
  waiting.delete(this);
  for (const act of [...acts]) act();
}

function nothing(): void {
  return undefined;
}

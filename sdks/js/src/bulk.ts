// SPDX-License-Identifier: AGPL-3.0-only
// Calls that are too large for one request: split, sent one after the other, put together again.
// Never two requests at once, so that messages are stored in the order of the list; and nothing is
// sent after a request that failed as a whole.

import { FilaError, about } from "./errors.js";
import type { CallOptions } from "./options.js";
import { currentTrace } from "./tracing.js";
import { ackFrames } from "./grants.js";
import type { Send } from "./grants.js";
import type { Pipelines } from "./pipeline.js";
import { ACK, afterRepeat, join, outcomes, split } from "./wire.js";
import type { Batch, Item } from "./wire.js";

/** Sends all items and returns one outcome for each, in order. */
export async function sendMany<T>(
  pipelines: Pipelines,
  rpc: Batch<T>,
  items: Iterable<Item>,
  options: CallOptions,
): Promise<(T | FilaError)[]> {
  pipelines.connection.checkOpen();
  options.signal?.throwIfAborted();
  const trace = currentTrace();
  const found: (T | FilaError)[] = [];
  let failure: FilaError | null = null;
  for (const batch of split(items)) {
    if (failure === null) {
      try {
        found.push(...(await sendBatch(pipelines, rpc, batch, trace, options)));
        continue;
      } catch (error) {
        if (!(error instanceof FilaError)) throw error;
        failure = error;
      }
      found.push(...refused(batch, failure, failure.message));
      continue;
    }
    const text = `not sent, because an earlier request of this call failed: ${failure.message}`;
    found.push(...refused(batch, failure, text));
  }
  return found;
}

/** Acks all items, whole frames by their grants; null or an error for each, in order. */
export async function ackMany(
  pipelines: Pipelines,
  items: readonly Item[],
  options: CallOptions,
): Promise<(FilaError | null)[]> {
  pipelines.connection.checkOpen();
  options.signal?.throwIfAborted();
  const trace = currentTrace();
  let isRepeat = false;
  const onRepeat = (): void => {
    isRepeat = true;
  };
  const settle: Send = async (rpc, grants) => {
    const found = [];
    for (const batch of split(grants)) {
      found.push(...(await sendBatch(pipelines, rpc, batch, trace, options, onRepeat)));
    }
    return found;
  };
  const send: Send = async (rpc, acks) => {
    const found = await sendMany(pipelines, rpc, acks, options);
    // Of a frame that was sent twice what is not there was settled the first time.
    return isRepeat ? found.map((outcome) => afterRepeat(rpc, outcome)) : found;
  };
  try {
    return await ackFrames(pipelines.connection, items, ACK, settle, send);
  } catch (error) {
    if (!(error instanceof FilaError)) throw error;
    return refused(items, error, error.message);
  }
}

async function sendBatch<T>(
  pipelines: Pipelines,
  rpc: Batch<T>,
  batch: Item[],
  trace: ReturnType<typeof currentTrace>,
  options: CallOptions,
  onRepeat?: () => void,
): Promise<(T | FilaError)[]> {
  const request = join(batch);
  const { signal } = options;
  let attempts = 0;
  const results = await pipelines.connection.retrying(
    (timeoutMs) => {
      attempts += 1;
      return pipelines.send(rpc, request, { timeoutMs, trace, signal });
    },
    batch.every((item) => item.isRepeatable),
    options,
  );
  const found = outcomes(rpc, results, batch);
  if (attempts === 1) return found;
  onRepeat?.();
  return found.map((outcome) => afterRepeat(rpc, outcome));
}

function refused(batch: readonly Item[], failure: FilaError, text: string): FilaError[] {
  return batch.map(({ queue, messageId }) => about(failure, { queue, messageId }, text));
}

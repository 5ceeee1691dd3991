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
import { ACK, join, outcomes, split } from "./wire.js";
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
  const settle: Send = async (rpc, grants) => {
    const found = [];
    for (const batch of split(grants)) {
      found.push(...(await sendBatch(pipelines, rpc, batch, trace, options)));
    }
    return found;
  };
  try {
    return await ackFrames(pipelines.connection, items, ACK, settle, (rpc, acks) =>
      sendMany(pipelines, rpc, acks, options),
    );
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
): Promise<(T | FilaError)[]> {
  const request = join(batch);
  const { signal } = options;
  const results = await pipelines.connection.retrying(
    (timeoutMs) => pipelines.send(rpc, request, { timeoutMs, trace, signal }),
    batch.every((item) => item.isRepeatable),
    options,
  );
  return outcomes(rpc, results, batch);
}

function refused(batch: readonly Item[], failure: FilaError, text: string): FilaError[] {
  return batch.map(({ queue, messageId }) => about(failure, { queue, messageId }, text));
}

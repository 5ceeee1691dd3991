// SPDX-License-Identifier: AGPL-3.0-only
// Calls that are too large for one request: split, sent one after the other, put together again.
// Never two requests at once, so that messages are stored in the order of the list; and nothing is
// sent after a request that failed as a whole.

import type { Connection } from "./connection.js";
import { FilaError, about } from "./errors.js";
import type { CallOptions } from "./options.js";
import { currentTrace } from "./tracing.js";
import { ackFrames } from "./grants.js";
import type { Send } from "./grants.js";
import { ACK, join, outcomes, split } from "./wire.js";
import type { Batch, Item } from "./wire.js";

/** Sends all items and returns one outcome for each, in order. */
export async function sendMany<T>(
  connection: Connection,
  rpc: Batch<T>,
  items: Iterable<Item>,
  options: CallOptions,
): Promise<(T | FilaError)[]> {
  connection.checkOpen();
  options.signal?.throwIfAborted();
  const trace = currentTrace();
  const found: (T | FilaError)[] = [];
  let failure: FilaError | null = null;
  for (const batch of split(items)) {
    if (failure === null) {
      try {
        found.push(...(await sendBatch(connection, rpc, batch, trace, options)));
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
  connection: Connection,
  items: readonly Item[],
  options: CallOptions,
): Promise<(FilaError | null)[]> {
  connection.checkOpen();
  options.signal?.throwIfAborted();
  const trace = currentTrace();
  const settle: Send = async (rpc, grants) => {
    const found = [];
    for (const batch of split(grants)) {
      found.push(...(await sendBatch(connection, rpc, batch, trace, options)));
    }
    return found;
  };
  try {
    return await ackFrames(connection, items, ACK, settle, (rpc, acks) =>
      sendMany(connection, rpc, acks, options),
    );
  } catch (error) {
    if (!(error instanceof FilaError)) throw error;
    return refused(items, error, error.message);
  }
}

async function sendBatch<T>(
  connection: Connection,
  rpc: Batch<T>,
  batch: Item[],
  trace: ReturnType<typeof currentTrace>,
  options: CallOptions,
): Promise<(T | FilaError)[]> {
  const request = join(batch);
  const { signal } = options;
  const response = await connection.retrying(
    (timeoutMs) => connection.send(rpc.method, request, rpc.decode, { timeoutMs, trace, signal }),
    batch.every((item) => item.isRepeatable),
    options,
  );
  return outcomes(rpc, response.results, batch);
}

function refused(batch: readonly Item[], failure: FilaError, text: string): FilaError[] {
  return batch.map(({ queue, messageId }) => about(failure, { queue, messageId }, text));
}

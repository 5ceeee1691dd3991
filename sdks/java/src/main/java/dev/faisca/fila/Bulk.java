// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/**
 * Calls that are too large for one request: split, sent one after the other, put together again.
 *
 * <p>Never two requests at once, so that messages are stored in the order of the list; and nothing
 * is sent after a request that failed as a whole.
 */
final class Bulk {
  private Bulk() {}

  /** Sends all items and returns one outcome for each, in order; each request has its own time. */
  static <I, T> List<Outcome<T>> send(
      Connection connection, BatchRpc<I, T> rpc, Iterator<Item<I>> items, Duration timeout)
      throws FilaException {
    connection.checkOpen();
    List<Outcome<T>> outcomes = new ArrayList<>();
    FilaException failure = null;
    Splitter<I> splitter = new Splitter<>(items);
    for (List<Item<I>> batch = splitter.next(); !batch.isEmpty(); batch = splitter.next()) {
      if (failure != null) {
        String text = "not sent, because an earlier request of this call failed: ";
        outcomes.addAll(BatchRpc.failed(batch, failure, text + failure.getMessage()));
        continue;
      }
      try {
        outcomes.addAll(connection.call(rpc.call(batch), timeout));
      } catch (FilaException error) {
        // Who interrupts the thread wants it to stop, and has no use for a list.
        if (Thread.currentThread().isInterrupted()) {
          throw error;
        }
        failure = error;
        outcomes.addAll(BatchRpc.failed(batch, error, error.getMessage()));
      }
    }
    return outcomes;
  }

  /** The items in order, in batches that stay within both limits. */
  static final class Splitter<I> {
    private final Iterator<Item<I>> items;
    private Item<I> held;

    Splitter(Iterator<Item<I>> items) {
      this.items = items;
    }

    /** The next batch; empty when there is none. */
    List<Item<I>> next() {
      List<Item<I>> batch = new ArrayList<>();
      int bytes = 0;
      while (batch.size() < BatchRpc.ITEMS_MAX && (held != null || items.hasNext())) {
        Item<I> item = held != null ? held : items.next();
        held = item;
        bytes += item.bytes();
        if (!batch.isEmpty() && bytes > BatchRpc.BYTES_MAX) {
          break;
        }
        batch.add(item);
        held = null;
      }
      return batch;
    }
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.grpc.Deadline;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/** What a client has in common with those of another timeout, and how all of it ends. */
final class Shared {
  final Connection connection;
  final Singles singles;
  final Batches batches;
  final Leases leases;
  // Those that are open.
  final Set<Consumer> consumers = ConcurrentHashMap.newKeySet();
  private final Promises promises = new Promises();

  Shared(ClientOptions options) {
    this.connection = new Connection(options);
    this.singles = new Singles(connection, promises);
    this.batches = new Batches(connection, promises);
    this.leases = new Leases(connection);
  }

  void flush(Duration timeout) throws FilaException {
    connection.checkOpen();
    try {
      if (!promises.await(Connection.deadline(timeout))) {
        String text = "calls that were begun before were not all answered in time";
        throw Errors.fromStatus(
            new CallFailure(text, "DEADLINE_EXCEEDED", null, null, null, null));
      }
    } catch (InterruptedException interrupted) {
      throw Connection.interrupted();
    }
  }

  /** Refuses what is new, gives back, waits for what was promised, and cuts off what is left. */
  void close() {
    connection.refuse();
    Deadline deadline = Connection.deadline(connection.options().closeTimeout());
    var released = consumers.stream().map(Consumer::release).toArray(CompletableFuture<?>[]::new);
    try {
      promises.await(deadline);
    } catch (InterruptedException hurried) {
      Thread.currentThread().interrupt();
    }
    Wait.quietly(CompletableFuture.allOf(released), Consumer.RELEASE);
    connection.close();
  }
}

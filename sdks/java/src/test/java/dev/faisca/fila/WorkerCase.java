// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.internal.v1.AckBatchRequest;
import dev.faisca.fila.internal.v1.AckRequest;
import dev.faisca.fila.internal.v1.NackBatchRequest;
import dev.faisca.fila.internal.v1.NackRequest;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** What tests of workers have in common: what they told, and what they asked of the broker. */
@SuppressWarnings("try")
abstract class WorkerCase extends BrokerTest {
  final List<WorkerEvent> events = new CopyOnWriteArrayList<>();

  WorkerBuilder<ConsumeMessage> worker(Handler<ConsumeMessage> handler) {
    return client.worker("orders", handler).signals(false).onEvent(events::add);
  }

  List<NackRequest> nacks() {
    return broker.requests("NackBatch", NackBatchRequest.class).stream()
        .flatMap(request -> request.getNacksList().stream())
        .toList();
  }

  List<String> acks() {
    return broker.requests("AckBatch", AckBatchRequest.class).stream()
        .flatMap(request -> request.getAcksList().stream())
        .map(AckRequest::getMessageId)
        .sorted()
        .toList();
  }

  List<String> kinds() {
    return events.stream().map(event -> event.kind() + " " + event.message().id()).toList();
  }

  static void sleep() throws InterruptedException {
    Thread.sleep(PATIENCE.toMillis() * 10);
  }
}

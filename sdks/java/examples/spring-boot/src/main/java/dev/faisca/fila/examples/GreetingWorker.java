// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.examples;

import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.FilaClient;
import dev.faisca.fila.FilaException;
import dev.faisca.fila.Handler;
import dev.faisca.fila.Worker;
import org.springframework.context.SmartLifecycle;

/**
 * A worker that runs while the application context does. Spring stops it before it closes any bean,
 * the client included, so what is being handled is still acked.
 */
final class GreetingWorker implements SmartLifecycle {
  private final FilaClient client;
  private final String queue;
  private final Handler<ConsumeMessage> handler;
  private Worker worker;

  GreetingWorker(FilaClient client, String queue, Handler<ConsumeMessage> handler) {
    this.client = client;
    this.queue = queue;
    this.handler = handler;
  }

  @Override
  public synchronized void start() {
    try {
      client.ensureQueue(queue);
      // SIGTERM is Spring's business: it closes the context, which stops this.
      worker = client.worker(queue, handler).concurrency(4).signals(false).build().start();
    } catch (FilaException error) {
      throw new IllegalStateException("the worker of \"%s\" cannot start".formatted(queue), error);
    }
  }

  /** Takes no more, and waits for the handlers that run, as long as the worker's grace. */
  @Override
  public synchronized void stop() {
    worker.close();
    worker = null;
  }

  @Override
  public synchronized boolean isRunning() {
    return worker != null;
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * Collects what a {@link Worker} is made of. What is not chosen has a default. Numbers and times
 * that cannot be fail with IllegalArgumentException.
 *
 * @param <M> what its handler gets
 */
public final class WorkerBuilder<M> {
  private static final int FRAME_MESSAGES = ConsumeOptions.DEFAULT.batchSize();

  private final FilaClient client;
  private final String queue;
  private final int batchSize;
  private final Function<List<ConsumeMessage>, M> shape;
  private final Handler<M> handler;
  private final List<Middleware<M>> middleware = new ArrayList<>();
  private int concurrency = 10;
  private int prefetch;
  private Duration visibilityTimeout;
  private Duration handlerTimeout;
  private Duration grace = Duration.ofSeconds(20);
  private boolean signals = true;
  private Consumer<WorkerEvent> listener = event -> {};

  /** One whose handler gets what it makes of up to so many messages. */
  WorkerBuilder(
      FilaClient client,
      String queue,
      int batchSize,
      Function<List<ConsumeMessage>, M> shape,
      Handler<M> handler) {
    this.client = client;
    this.queue = Wire.named("queue", queue);
    this.batchSize = positive("batchSize", batchSize);
    this.shape = shape;
    this.handler = Objects.requireNonNull(handler, "handler");
  }

  /** How many handlers run at a time, each in a thread of its own; by default 10. */
  public WorkerBuilder<M> concurrency(int concurrency) {
    this.concurrency = positive("concurrency", concurrency);
    return this;
  }

  /**
   * How many messages are leased at a time; by default, and at least, enough for every handler. The
   * default is twice that.
   */
  public WorkerBuilder<M> prefetch(int prefetch) {
    this.prefetch = positive("prefetch", prefetch);
    return this;
  }

  /** How long each lease lasts, unless it is extended; by default the queue's own time. */
  public WorkerBuilder<M> visibilityTimeout(Duration visibilityTimeout) {
    Wire.millis("visibilityTimeout", visibilityTimeout);
    this.visibilityTimeout = visibilityTimeout;
    return this;
  }

  /** The time after which a handler is interrupted and has failed; by default there is none. */
  public WorkerBuilder<M> handlerTimeout(Duration handlerTimeout) {
    if (handlerTimeout != null && (handlerTimeout.isZero() || handlerTimeout.isNegative())) {
      throw new IllegalArgumentException("handlerTimeout must be positive, got " + handlerTimeout);
    }
    this.handlerTimeout = handlerTimeout;
    return this;
  }

  /** What handlers get to finish after a stop; by default 20 s. */
  public WorkerBuilder<M> grace(Duration grace) {
    Wire.millis("grace", Objects.requireNonNull(grace, "grace"));
    this.grace = grace;
    return this;
  }

  /** Runs around the handler, and around middleware that is added later. */
  public WorkerBuilder<M> middleware(Middleware<M> middleware) {
    this.middleware.add(Objects.requireNonNull(middleware, "middleware"));
    return this;
  }

  /**
   * Is told each event, by several threads at a time, which it must not hold up. What it throws is
   * logged and changes nothing.
   */
  public WorkerBuilder<M> onEvent(Consumer<WorkerEvent> listener) {
    this.listener = Objects.requireNonNull(listener, "listener");
    return this;
  }

  /** Whether {@link Worker#run} is stopped by SIGTERM and SIGINT; by default it is. */
  public WorkerBuilder<M> signals(boolean signals) {
    this.signals = signals;
    return this;
  }

  /** The worker, which does nothing yet. */
  public Worker build() {
    return new Worker(this);
  }

  // --- What the worker needs to know ------------------------------------------------------------

  FilaClient client() {
    return client;
  }

  String queue() {
    return queue;
  }

  int batchSize() {
    return batchSize;
  }

  int concurrency() {
    return concurrency;
  }

  int prefetch() {
    int busy = Math.multiplyExact(concurrency, batchSize);
    return prefetch == 0 ? Math.multiplyExact(2, busy) : Math.max(prefetch, busy);
  }

  Duration handlerTimeout() {
    return handlerTimeout;
  }

  Duration grace() {
    return grace;
  }

  boolean signals() {
    return signals;
  }

  Consumer<WorkerEvent> listener() {
    return listener;
  }

  ConsumeOptions consumeOptions() {
    int frame = Math.max(FRAME_MESSAGES, batchSize);
    return new ConsumeOptions(prefetch(), frame, visibilityTimeout, true);
  }

  /** The handler with all that runs around it. */
  Handler<List<ConsumeMessage>> handling() {
    Handler<M> outermost = handler;
    for (int index = middleware.size() - 1; index >= 0; index--) {
      Middleware<M> around = middleware.get(index);
      Handler<M> next = outermost;
      outermost = message -> around.handle(message, next);
    }
    Handler<M> first = outermost;
    return messages -> first.handle(shape.apply(messages));
  }

  private static int positive(String name, int value) {
    if (value <= 0) {
      throw new IllegalArgumentException(name + " must be positive, got " + value);
    }
    return value;
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Handles the messages of a queue until it is stopped: {@code client.worker("orders", message ->
 * ...).build().run()}.
 *
 * <p>Handlers run side by side in daemon threads. Leases are extended while they run; what they
 * return or throw settles the message, see {@link Handler}. Its messages are settled beside the
 * handlers; a settlement that fails is logged, and the message comes back.
 *
 * <p>A stop gives back what no handler has seen, lets handlers finish for as long as {@link
 * WorkerBuilder#grace} says, interrupts those that still run and gives their messages back. A
 * worker works once.
 */
public final class Worker implements AutoCloseable {
  private final FilaClient client;
  private final WorkerBuilder<?> options;
  private final Handler<List<ConsumeMessage>> handler;
  private final int underWayMax;

  // Guards what follows.
  private final Object lock = new Object();
  private final Set<Handling> handlings = new HashSet<>();
  private Consumer consumer;
  private boolean isStopping;
  private boolean isReleased;
  private boolean isRun;
  // Threads that look for a message, and handlings that are not settled.
  private int underWay;
  private Throwable failure;
  private final CompletableFuture<Void> ended = new CompletableFuture<>();

  Worker(WorkerBuilder<?> options) {
    this.client = options.client();
    this.options = options;
    this.handler = options.handling();
    this.underWayMax = options.prefetch();
  }

  String queue() {
    return options.queue();
  }

  // --- Life cycle -------------------------------------------------------------------------------

  /**
   * Handles messages until it is stopped: by {@link #stop}, by SIGTERM or SIGINT unless {@link
   * WorkerBuilder#signals} says otherwise, or by an interrupt of this thread, of which a second one
   * ends the grace. Returns when all is settled; throws what ended the consumer, such as {@link
   * QueueNotFoundException}.
   */
  public void run() throws FilaException {
    synchronized (lock) {
      isRun = true;
    }
    Thread hook = options.signals() ? new Thread(this::close, "fila-worker-stop") : null;
    if (hook != null && !add(hook)) {
      return;
    }
    try {
      start();
      awaitEnd();
    } finally {
      if (hook != null) {
        remove(hook);
      }
    }
    rethrow();
  }

  /** Starts to handle messages, and returns at once. Signals are the program's business then. */
  public Worker start() throws FilaException {
    synchronized (lock) {
      if (isStopping) {
        return this;
      }
      if (consumer != null) {
        throw new IllegalStateException("a worker works once");
      }
      consumer = client.consumeHeld(options.queue(), options.consumeOptions());
    }
    for (int number = 1; number <= options.concurrency(); number++) {
      Thread thread = new Thread(this::work, "fila-worker-" + options.queue() + "-" + number);
      thread.setDaemon(true);
      thread.start();
    }
    return this;
  }

  /** Begins to stop, and returns at once; see {@link #join}. */
  public void stop() {
    stop(options.grace());
  }

  /** Like the other form, with another grace; zero ends the one that goes on. */
  public void stop(Duration grace) {
    Consumer last;
    synchronized (lock) {
      last = isStopping ? null : consumer;
      isStopping = true;
      isReleased |= consumer == null;
      lock.notifyAll();
    }
    if (last != null) {
      last.release().whenComplete((nothing, error) -> released());
    }
    if (grace.isZero() || grace.isNegative()) {
      endGrace();
    } else {
      // Not the client's clock, which ends with the client.
      CompletableFuture.delayedExecutor(grace.toNanos(), TimeUnit.NANOSECONDS)
          .execute(this::endGrace);
    }
    endIfDone();
  }

  /** Waits until the worker has ended, as {@link #run} does, and throws what it throws. */
  public void join() throws FilaException {
    awaitEnd();
    rethrow();
  }

  /** Stops, and waits until the worker has ended. Harmless twice. */
  @Override
  public void close() {
    stop();
    awaitEnd();
  }

  private void awaitEnd() {
    boolean wasInterrupted = false;
    while (true) {
      try {
        ended.get();
        break;
      } catch (InterruptedException interrupted) {
        stop(wasInterrupted ? Duration.ZERO : options.grace());
        wasInterrupted = true;
      } catch (ExecutionException impossible) {
        throw new IllegalStateException(impossible);
      }
    }
    if (wasInterrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private void rethrow() throws FilaException {
    Throwable thrown;
    synchronized (lock) {
      thrown = failure;
    }
    if (thrown instanceof FilaException error) {
      error.fillInStackTrace();
      throw error;
    }
    if (thrown != null) {
      throw new IllegalStateException("a worker has failed", thrown);
    }
  }

  /** False if the process ends already. */
  private static boolean add(Thread hook) {
    try {
      Runtime.getRuntime().addShutdownHook(hook);
      return true;
    } catch (IllegalStateException ending) {
      return false;
    }
  }

  private static void remove(Thread hook) {
    try {
      Runtime.getRuntime().removeShutdownHook(hook);
    } catch (IllegalStateException ending) {
      // The hook is what ended the worker.
    }
  }

  // --- Working ----------------------------------------------------------------------------------

  private void work() {
    try {
      while (enter()) {
        List<ConsumeMessage> messages = take();
        if (messages.isEmpty()) {
          // Somebody closed the client, if it was not a stop.
          stopUnlessStopping();
          leave();
          return;
        }
        handle(messages);
      }
    } catch (Throwable defect) {
      fail(defect);
      leave();
    }
  }

  /** Waits for a place; false if the worker stops. Settlements that are under way hold theirs. */
  private boolean enter() {
    synchronized (lock) {
      while (underWay >= underWayMax && !isStopping) {
        try {
          lock.wait();
        } catch (InterruptedException late) {
          // Something that a handler left behind; nothing here is ended by an interrupt.
        }
      }
      if (!isStopping) {
        underWay++;
      }
      return !isStopping;
    }
  }

  private List<ConsumeMessage> take() throws FilaException {
    while (true) {
      try {
        return consumer.take(options.batchSize());
      } catch (CancelledException late) {
        if (!Thread.interrupted()) {
          throw late;
        }
      }
    }
  }

  private void handle(List<ConsumeMessage> messages) {
    Handling handling = new Handling(this, client, messages);
    boolean isLate;
    synchronized (lock) {
      isLate = isStopping;
      if (!isLate) {
        handlings.add(handling);
      }
    }
    if (isLate) {
      handling.abandon();
      return;
    }
    handling.run(handler, options.handlerTimeout());
    synchronized (lock) {
      handlings.remove(handling);
    }
  }

  // --- What becomes of it -----------------------------------------------------------------------

  Future<?> at(Duration time, Runnable action) {
    return client.shared().connection.at(Connection.deadline(time), action);
  }

  void tell(WorkerEvent event) {
    try {
      options.listener().accept(event);
    } catch (Throwable error) {
      Consumer.LOG.log(Level.WARNING, "a listener to a worker's events has failed", error);
    }
  }

  /** A thread looks for no message any more, or all messages of a handling are settled. */
  void leave() {
    synchronized (lock) {
      underWay--;
      lock.notify();
    }
    endIfDone();
  }

  private void released() {
    synchronized (lock) {
      isReleased = true;
    }
    endIfDone();
  }

  private void endGrace() {
    List<Handling> left;
    synchronized (lock) {
      left = new ArrayList<>(handlings);
    }
    left.forEach(Handling::abandon);
  }

  private void endIfDone() {
    synchronized (lock) {
      if (!isStopping || !isReleased || underWay > 0) {
        return;
      }
    }
    ended.complete(null);
  }

  private void fail(Throwable error) {
    boolean isTold;
    synchronized (lock) {
      isTold = isRun;
      failure = failure == null ? error : failure;
    }
    if (!isTold) {
      Consumer.LOG.log(Level.ERROR, "a worker of queue \"" + queue() + "\" has failed", error);
    }
    stopUnlessStopping();
  }

  private void stopUnlessStopping() {
    boolean isLate;
    synchronized (lock) {
      isLate = isStopping;
    }
    if (!isLate) {
      stop();
    }
  }
}

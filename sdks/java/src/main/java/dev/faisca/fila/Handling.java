// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import dev.faisca.fila.WorkerEvent.Kind;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;

/**
 * One call of a worker's handler: what it says, or what is said in its place, decides what becomes
 * of its messages. Whoever decides first counts.
 *
 * <pre>
 *  handler returns --------------&gt; ack        too slow -----&gt; nack, and it is interrupted
 *  throws Backpressure ----------&gt; put off    grace over ---&gt; given back, and interrupted
 *  throws DeadLetter ------------&gt; dead letter
 *  throws whatever else ---------&gt; nack
 * </pre>
 */
final class Handling {
  private final Worker worker;
  private final FilaClient client;
  private final List<ConsumeMessage> messages;
  private final long startedAt = System.nanoTime();
  private final Thread thread = Thread.currentThread();

  // Guarded by this. The thread is interrupted only while it is in the handler.
  private boolean isRunning;
  private boolean isDecided;

  Handling(Worker worker, FilaClient client, List<ConsumeMessage> messages) {
    this.worker = worker;
    this.client = client;
    this.messages = messages;
  }

  /** Runs the handler in this thread, and settles by its outcome unless that is too late. */
  void run(Handler<List<ConsumeMessage>> handler, Duration timeout) {
    synchronized (this) {
      if (isDecided) {
        return;
      }
      isRunning = true;
    }
    Future<?> timer = timeout == null ? null : worker.at(timeout, () -> expire(timeout));
    Throwable failure = null;
    try {
      Tracing.processing(
          messages,
          () -> {
            handler.handle(messages);
            return null;
          });
    } catch (Throwable thrown) {
      failure = thrown;
    }
    boolean isMine;
    synchronized (this) {
      isRunning = false;
      isMine = decide();
      // Whoever interrupted this handler did not mean the next one.
      Thread.interrupted();
    }
    if (timer != null) {
      timer.cancel(false);
    }
    if (isMine) {
      finish(failure);
    }
  }

  /** The guard is held. */
  private boolean decide() {
    boolean isFirst = !isDecided;
    isDecided = true;
    return isFirst;
  }

  private void expire(Duration timeout) {
    synchronized (this) {
      if (!decide()) {
        return;
      }
      thread.interrupt();
    }
    String text = "handler timed out after " + seconds(timeout);
    messages.forEach(message -> tell(Kind.TIMED_OUT, message, null));
    nack(Kind.NACKED, text, NackOptions.NONE, null);
  }

  private static String seconds(Duration duration) {
    double seconds = duration.toNanos() / 1e9;
    return seconds == Math.rint(seconds) ? "%.0f s".formatted(seconds) : seconds + " s";
  }

  /** Gives the messages back, and interrupts the handler if it still runs. */
  void abandon() {
    boolean isMine;
    synchronized (this) {
      isMine = decide();
      if (isRunning) {
        thread.interrupt();
      }
    }
    if (isMine) {
      nack(Kind.GIVEN_BACK, "", NackOptions.NONE.withRetryAfter(Duration.ZERO), null);
    }
  }

  private void finish(Throwable failure) {
    if (failure == null) {
      ack();
    } else if (failure instanceof Backpressure later) {
      NackOptions options = new NackOptions(later.retryAfter(), later.throttleKey(), false);
      nack(Kind.PUT_OFF, Wire.orEmpty(later.getMessage()), options, failure);
    } else if (failure instanceof DeadLetter) {
      String reason = Wire.orEmpty(failure.getMessage());
      nack(Kind.DEAD_LETTERED, reason, NackOptions.DEAD_LETTER, failure);
    } else {
      // What breaks the program, and not one message, should be seen by somebody.
      Level level = failure instanceof Error ? Level.ERROR : Level.DEBUG;
      Consumer.LOG.log(level, "a handler of queue \"" + worker.queue() + "\" failed", failure);
      nack(Kind.NACKED, failure.toString(), NackOptions.NONE, failure);
    }
  }

  // --- Settling ---------------------------------------------------------------------------------

  private void ack() {
    List<ConsumeMessage> left = left();
    List<CompletableFuture<Void>> answers = new ArrayList<>(left.size());
    if (left.size() == 1) {
      answers.add(client.shared().singles.ack(left.get(0).acked(), client.timeout(), false));
    } else if (left.size() > 1) {
      var items = left.stream().map(ConsumeMessage::acked).toList();
      answers = client.shared().singles.ackAll(items, client.timeout());
    }
    settle(Kind.ACKED, left, answers, null);
  }

  private void nack(Kind kind, String text, NackOptions options, Throwable failure) {
    String shown = Wire.shown(text);
    List<ConsumeMessage> left = left();
    List<CompletableFuture<Void>> answers = new ArrayList<>(left.size());
    for (ConsumeMessage message : left) {
      var item = Wire.nack(message.queue(), message.id(), message.leaseToken(), shown, options);
      answers.add(client.shared().singles.nack(item, client.timeout(), false));
    }
    settle(kind, left, answers, failure);
  }

  /** What the handler has not settled. None of them is held any more. */
  private List<ConsumeMessage> left() {
    messages.forEach(ConsumeMessage::letGo);
    return messages.stream().filter(message -> !message.isSettled).toList();
  }

  private void settle(
      Kind kind,
      List<ConsumeMessage> left,
      List<CompletableFuture<Void>> answers,
      Throwable failure) {
    Duration duration = Duration.ofNanos(System.nanoTime() - startedAt);
    // Told first, done then: who waits for the worker's end has heard of everything.
    CompletableFuture<?>[] told = new CompletableFuture<?>[left.size()];
    for (int index = 0; index < told.length; index++) {
      ConsumeMessage message = left.get(index);
      told[index] =
          answers
              .get(index)
              .handle((nothing, error) -> settled(kind, message, duration, failure, error));
    }
    CompletableFuture.allOf(told).whenComplete((nothing, error) -> worker.leave());
  }

  private Void settled(
      Kind kind, ConsumeMessage message, Duration duration, Throwable failure, Throwable error) {
    if (error == null) {
      worker.tell(new WorkerEvent(kind, message, duration, failure));
      return null;
    }
    Consumer.LOG.log(
        Level.WARNING,
        "message {0} of queue \"{1}\" could not be settled and comes back: {2}",
        message.id(),
        message.queue(),
        error.getMessage());
    worker.tell(new WorkerEvent(Kind.SETTLE_FAILED, message, duration, error));
    return null;
  }

  private void tell(Kind kind, ConsumeMessage message, Throwable error) {
    Duration duration = Duration.ofNanos(System.nanoTime() - startedAt);
    worker.tell(new WorkerEvent(kind, message, duration, error));
  }
}

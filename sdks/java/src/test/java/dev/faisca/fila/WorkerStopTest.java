// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.NackRequest;
import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** A worker ends when it is told to, or when its consumer does, and leaves nothing behind. */
@SuppressWarnings("try")
class WorkerStopTest extends WorkerCase {
  private Future<?> run(Worker worker) {
    return threads.submit(
        () -> {
          worker.run();
          return null;
        });
  }

  private static void get(Future<?> future) throws Exception {
    future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
  }

  @Test
  void aStopGivesBackWhatNobodyHasSeenAndLetsHandlersFinish() throws Exception {
    CountDownLatch left = broker.deliver(ScriptedBroker.frame("a", "b", "c"));
    CountDownLatch started = new CountDownLatch(1);
    CountDownLatch open = new CountDownLatch(1);
    Worker worker =
        worker(
                message -> {
                  started.countDown();
                  await(open);
                })
            .concurrency(1)
            .build();
    Future<?> run = run(worker);
    await(started);
    worker.stop();
    await(left);
    eventually(() -> nacks().size() == 2);
    assertFalse(run.isDone());
    open.countDown();
    get(run);
    assertEquals(List.of("a"), acks());
    assertEquals(List.of("b", "c"), nacks().stream().map(NackRequest::getMessageId).toList());
    assertTrue(nacks().stream().allMatch(n -> n.hasRetryAfterMs() && n.getRetryAfterMs() == 0));
    assertEquals(List.of("ACKED a"), kinds());
  }

  @Test
  void whatRunsWhenTheGraceIsOverIsInterruptedAndGivenBack() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    CountDownLatch started = new CountDownLatch(1);
    CountDownLatch interrupted = new CountDownLatch(1);
    Worker worker =
        worker(
                message -> {
                  started.countDown();
                  try {
                    sleep();
                  } finally {
                    interrupted.countDown();
                  }
                })
            .grace(Duration.ofMillis(100))
            .build();
    Future<?> run = run(worker);
    await(started);
    worker.stop();
    get(run);
    await(interrupted);
    assertEquals(1, nacks().size());
    assertTrue(nacks().get(0).hasRetryAfterMs());
    assertEquals(List.of("GIVEN_BACK a"), kinds());
  }

  @Test
  void aStopWithoutGraceEndsTheOneThatGoesOn() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    CountDownLatch started = new CountDownLatch(1);
    Worker worker =
        worker(
                message -> {
                  started.countDown();
                  sleep();
                })
            .grace(Duration.ofHours(1))
            .build();
    Future<?> run = run(worker);
    await(started);
    worker.stop();
    worker.stop(Duration.ZERO);
    get(run);
    assertEquals(List.of("GIVEN_BACK a"), kinds());
  }

  @Test
  void anInterruptStopsRunAndIsRemembered() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    CountDownLatch started = new CountDownLatch(1);
    Worker worker =
        worker(
                message -> {
                  started.countDown();
                  sleep();
                })
            .grace(Duration.ofHours(1))
            .build();
    List<Boolean> flags = new CopyOnWriteArrayList<>();
    Thread thread =
        new Thread(
            () -> {
              try {
                worker.run();
                flags.add(Thread.currentThread().isInterrupted());
              } catch (FilaException wrong) {
                flags.add(false);
              }
            });
    thread.start();
    await(started);
    thread.interrupt();
    eventually(() -> thread.getState() == Thread.State.WAITING && !thread.isInterrupted());
    thread.interrupt();
    thread.join(PATIENCE.toMillis());
    assertEquals(List.of(true), flags);
    assertEquals(List.of("GIVEN_BACK a"), kinds());
  }

  @Test
  void runReturnsWhenAllIsSettled() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    Gate gate = new Gate(broker, "AckBatch", ScriptedBroker::acked);
    Worker worker = worker(message -> {}).build();
    Future<?> run = run(worker);
    gate.awaitRequests(1);
    worker.stop();
    eventually(() -> client.shared().consumers.isEmpty());
    Thread.sleep(100);
    assertFalse(run.isDone());
    gate.open();
    get(run);
    assertEquals(List.of("ACKED a"), kinds());
  }

  @Test
  void aWorkerThatWasStoppedBeforeItRanDoesNothing() throws Exception {
    Worker worker = worker(message -> {}).build();
    worker.stop();
    worker.run();
    worker.close();
    assertEquals(List.of(), broker.seen);
  }

  @Test
  void closingTheClientEndsItsWorkers() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    FilaClient own = connect(builder());
    Worker worker =
        own.worker("orders", message -> {}).signals(false).onEvent(events::add).build();
    Future<?> run = run(worker);
    eventually(() -> events.size() == 1);
    own.close();
    get(run);
  }

  // --- Errors -----------------------------------------------------------------------------------

  @Test
  void runThrowsWhatEndsItsConsumer() throws Exception {
    broker.refuse("Consume", Status.Code.NOT_FOUND, "no queue", "QUEUE_NOT_FOUND");
    Worker worker = worker(message -> {}).build();
    FilaException error = assertThrows(QueueNotFoundException.class, worker::run);
    assertEquals("orders", error.queue());
    worker.close();
    assertThrows(QueueNotFoundException.class, worker::join);
  }

  @Test
  void aWorkerThatNobodyWaitsForSaysInTheLogThatItHasFailed() throws Exception {
    broker.refuse("Consume", Status.Code.NOT_FOUND, "no queue", "QUEUE_NOT_FOUND");
    try (Logged logged = new Logged();
        Worker worker = worker(message -> {}).build().start()) {
      eventually(() -> logged.has("SEVERE a worker of queue \"orders\" has failed"));
    }
  }

  @Test
  void itsHandlersAreDoneBeforeItFails() throws Exception {
    CountDownLatch started = new CountDownLatch(1);
    broker.script(
        "Consume",
        (request, observer) -> {
          observer.onNext(ScriptedBroker.frame("a"));
          await(started);
          observer.onError(
              ScriptedBroker.refusal(
                  Status.Code.PERMISSION_DENIED, "revoked", "PERMISSION_DENIED"));
        });
    CountDownLatch open = new CountDownLatch(1);
    Worker worker =
        worker(
                message -> {
                  started.countDown();
                  await(open);
                })
            .build();
    Future<?> run = run(worker);
    eventually(() -> client.shared().consumers.isEmpty());
    assertFalse(run.isDone());
    open.countDown();
    Exception failed = assertThrows(java.util.concurrent.ExecutionException.class, () -> get(run));
    assertInstanceOf(PermissionDeniedException.class, failed.getCause());
    assertEquals(List.of("ACKED a"), kinds());
  }

  @Test
  void aBrokerThatIsAwayIsNoError() throws Exception {
    AtomicInteger attempts = new AtomicInteger();
    broker.script(
        "Consume",
        (request, observer) -> {
          if (attempts.incrementAndGet() < 3) {
            observer.onError(ScriptedBroker.refusal(Status.Code.UNAVAILABLE, "away", null));
          } else {
            observer.onNext(ScriptedBroker.frame("a"));
          }
        });
    FilaClient quick = connect(builder().backoff(QUICK));
    Worker worker =
        quick.worker("orders", message -> {}).signals(false).onEvent(events::add).build();
    try (worker) {
      worker.start();
      eventually(() -> events.size() == 1);
    }
    assertEquals(List.of("a"), acks());
  }

  // --- Signals ----------------------------------------------------------------------------------

  /** A program of its own, for the signal. */
  static final class Program {
    public static void main(String[] arguments) throws Exception {
      FilaClient client = FilaClient.builder().target(arguments[0]).build();
      client
          .worker(
              "orders",
              message -> {
                System.out.println("started");
                Thread.sleep(1000);
              })
          .build()
          .run();
    }
  }

  @Test
  void aSignalStopsRunAndTheProcessWaitsForItsEnd() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    List<String> command = new ArrayList<>();
    command.add(ProcessHandle.current().info().command().orElseThrow());
    command.addAll(List.of("-cp", System.getProperty("java.class.path")));
    command.addAll(List.of(Program.class.getName(), broker.target()));
    Process process =
        new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
    try {
      assertEquals("started", process.inputReader().readLine());
      process.destroy();
      assertTrue(process.waitFor(PATIENCE.toSeconds(), TimeUnit.SECONDS));
      assertEquals(List.of("a"), acks());
    } finally {
      process.destroyForcibly();
    }
  }
}

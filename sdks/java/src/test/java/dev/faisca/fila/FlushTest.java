// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** What was begun is answered before a flush returns and before a close cuts it off. */
class FlushTest extends BrokerTest {
  private static <T> T get(Future<T> future) throws Exception {
    return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
  }

  private static FilaException failure(Future<?> future) {
    ExecutionException failed = assertThrows(ExecutionException.class, () -> get(future));
    return assertInstanceOf(FilaException.class, failed.getCause());
  }

  private Future<?> inThread(Executable call) {
    return threads.submit(
        () -> {
          call.run();
          return null;
        });
  }

  private interface Executable {
    void run() throws Exception;
  }

  // --- Flush ------------------------------------------------------------------------------------

  @Test
  void flushWaitsForWhatWasBegunBeforeWhateverTheAnswer() throws Exception {
    Gate enqueues = new Gate(broker, "EnqueueBatch", broker::store);
    Gate nacks =
        new Gate(
            broker,
            "NackBatch",
            request -> {
              throw ScriptedBroker.refusal(Status.Code.INTERNAL, "broken", "INTERNAL");
            });
    CompletableFuture<String> enqueue = client.enqueueAsync(message("x"));
    CompletableFuture<Void> nack =
        client.nackAsync("orders", "m", "t", "no", NackOptions.NONE);
    Future<?> flush = inThread(() -> client.withTimeout(Duration.ofSeconds(60)).flush());
    enqueues.awaitRequests(1);
    nacks.awaitRequests(1);
    enqueues.open();
    get(enqueue);
    assertFalse(flush.isDone());
    nacks.open();
    get(flush);
    assertTrue(nack.isDone());
  }

  @Test
  void flushDoesNotWaitForWhatIsBegunLater() throws Exception {
    client.flush();
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    CompletableFuture<String> first = client.enqueueAsync(message("first"));
    Future<?> flush = inThread(() -> client.flush(PATIENCE));
    gate.awaitRequests(1);
    eventually(
        () -> Thread.getAllStackTraces().entrySet().stream().anyMatch(FlushTest::isFlushing));
    Gate never = new Gate(broker, "AckBatch", ScriptedBroker::acked);
    CompletableFuture<Void> later = client.ackAsync("orders", "m", "t");
    never.awaitRequests(1);
    gate.open();
    get(flush);
    assertTrue(first.isDone());
    assertFalse(later.isDone());
    never.open();
  }

  /** Whether a thread waits there, and not only is on its way. */
  private static boolean isFlushing(Map.Entry<Thread, StackTraceElement[]> thread) {
    if (thread.getKey().getState() != Thread.State.TIMED_WAITING) {
      return false;
    }
    for (StackTraceElement element : thread.getValue()) {
      if (element.getClassName().equals(Promises.class.getName())) {
        return true;
      }
    }
    return false;
  }

  @Test
  void aFlushThatTakesTooLongSaysSo() throws Exception {
    broker.script("EnqueueBatch", (request, observer) -> {});
    client.enqueueAsync(message("x"));
    assertThrows(DeadlineExceededException.class, () -> client.flush(Duration.ofMillis(50)));
    Thread.currentThread().interrupt();
    assertThrows(CancelledException.class, () -> client.flush());
    assertTrue(Thread.interrupted());
  }

  // --- Close ------------------------------------------------------------------------------------

  @Test
  void closeLetsWhatWasPromisedBeAnsweredAndRefusesWhatIsNew() throws Exception {
    FilaClient patient = connect(builder().closeTimeout(PATIENCE));
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    List<CompletableFuture<String>> calls = new ArrayList<>();
    for (int number = 0; number < 5; number++) {
      calls.add(patient.enqueueAsync(message("m" + number)));
    }
    Future<?> close = inThread(patient::close);
    eventually(
        () -> patient.enqueueAsync(message("late")).isCompletedExceptionally());
    assertInstanceOf(ClientClosedException.class, failure(patient.enqueueAsync(message("late"))));
    assertThrows(ClientClosedException.class, patient::listQueues);
    assertThrows(ClientClosedException.class, patient::flush);
    gate.open();
    get(close);
    for (CompletableFuture<String> call : calls) {
      assertTrue(get(call).startsWith("m"));
    }
    patient.close();
  }

  @Test
  void closeWaitsNoLongerThanItMay() throws Exception {
    broker.script("EnqueueBatch", (request, observer) -> {});
    FilaClient hasty = connect(builder().closeTimeout(Duration.ofMillis(50)));
    CompletableFuture<String> call = hasty.enqueueAsync(message("x"));
    hasty.close();
    assertInstanceOf(ClientClosedException.class, failure(call));
  }

  @Test
  void anInterruptEndsTheWaitingOfClose() throws Exception {
    broker.script("EnqueueBatch", (request, observer) -> {});
    FilaClient patient = connect(builder().closeTimeout(Duration.ofHours(1)));
    CompletableFuture<String> call = patient.enqueueAsync(message("x"));
    Thread.currentThread().interrupt();
    patient.close();
    assertTrue(Thread.interrupted());
    assertInstanceOf(ClientClosedException.class, failure(call));
  }

  @Test
  void closeFailsHoweverManyCallsThatWait() throws Exception {
    // Each of them is a batch of its own, which once meant a call within a call for each.
    broker.script("EnqueueBatch", (request, observer) -> {});
    FilaClient own = connect(builder().maxBufferedBytes(Long.MAX_VALUE));
    EnqueueMessage large =
        EnqueueMessage.to("orders").payload(new byte[BatchRpc.BYTES_MAX]).build();
    List<CompletableFuture<String>> calls = new ArrayList<>();
    for (int number = 0; number < 20_000; number++) {
      calls.add(own.enqueueAsync(large));
    }
    own.close();
    for (CompletableFuture<String> call : calls) {
      assertInstanceOf(ClientClosedException.class, failure(call));
    }
  }

  // --- Room -------------------------------------------------------------------------------------

  @Test
  void whatWaitsIsBoundedAndACallBeyondItWaits() throws Exception {
    FilaClient small = connect(builder().maxBufferedBytes(1000));
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    List<Future<String>> calls = new ArrayList<>();
    for (int slot = 0; slot < Coalescer.REQUESTS_UNDER_WAY_MAX; slot++) {
      calls.add(small.enqueueAsync(message("slot")));
      gate.awaitRequests(1);
    }
    calls.add(small.enqueueAsync(message("x".repeat(900))));
    FilaClient hasty = small.withTimeout(Duration.ofMillis(100));
    FilaException error =
        assertThrows(
            DeadlineExceededException.class, () -> hasty.enqueue(message("y".repeat(900))));
    assertTrue(error.getMessage().endsWith("not sent"), error.getMessage());
    Future<String> blocked = threads.submit(() -> small.enqueue(message("z".repeat(900))));
    Thread.sleep(50);
    assertEquals(1, small.shared().singles.enqueues().waitingCount());
    gate.open();
    assertTrue(get(blocked).startsWith("z"));
    for (Future<String> call : calls) {
      get(call);
    }
    assertFalse(
        broker
            .requests("EnqueueBatch", dev.faisca.fila.internal.v1.EnqueueBatchRequest.class)
            .toString()
            .contains("yyy"));
  }

  @Test
  void whoIsToldAnAnswerNeverWaitsForRoom() throws Exception {
    FilaClient small = connect(builder().maxBufferedBytes(1));
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    List<CompletableFuture<String>> chains = new ArrayList<>();
    for (int slot = 0; slot < Coalescer.REQUESTS_UNDER_WAY_MAX; slot++) {
      CompletableFuture<String> first = small.enqueueAsync(message("first"));
      for (int number = 0; number < 5; number++) {
        chains.add(first.thenCompose(id -> small.enqueueAsync(message("then"))));
      }
      gate.awaitRequests(1);
    }
    gate.open();
    for (CompletableFuture<String> chain : chains) {
      assertTrue(get(chain).startsWith("then"));
    }
  }

  @Test
  void anInterruptEndsTheWaitForRoomAndNothingIsSent() throws Exception {
    FilaClient small = connect(builder().maxBufferedBytes(1));
    broker.script("EnqueueBatch", (request, observer) -> {});
    for (int number = 0; number <= Coalescer.REQUESTS_UNDER_WAY_MAX; number++) {
      small.enqueueAsync(message("x"));
    }
    Thread.currentThread().interrupt();
    CompletableFuture<String> call = small.enqueueAsync(message("y"));
    assertTrue(Thread.interrupted());
    FilaException error = failure(call);
    assertInstanceOf(CancelledException.class, error);
    assertTrue(error.getMessage().endsWith("not sent"), error.getMessage());
  }
}

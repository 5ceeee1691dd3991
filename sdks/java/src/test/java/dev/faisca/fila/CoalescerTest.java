// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.AckBatchRequest;
import dev.faisca.fila.internal.v1.AckBatchResponse;
import dev.faisca.fila.internal.v1.AckRequest;
import dev.faisca.fila.internal.v1.EnqueueBatchRequest;
import dev.faisca.fila.internal.v1.EnqueueBatchResponse;
import dev.faisca.fila.internal.v1.EnqueueRequest;
import dev.faisca.fila.internal.v1.ErrorReason;
import dev.faisca.fila.internal.v1.ExtendLeaseRequest;
import dev.faisca.fila.internal.v1.ExtendLeaseResponse;
import dev.faisca.fila.internal.v1.FilaServiceGrpc;
import dev.faisca.fila.internal.v1.NackBatchRequest;
import io.grpc.Deadline;
import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/**
 * Concurrent calls share requests, each caller gets its own answer, and nobody waits for others.
 */
class CoalescerTest extends BrokerTest {
  private static final int SLOTS = Coalescer.REQUESTS_UNDER_WAY_MAX;

  /** Occupies every slot with a request that waits at the gate. */
  private Gate fillSlots(ScriptedBroker.Answer answer) throws InterruptedException {
    Gate gate = new Gate(broker, "EnqueueBatch", answer);
    for (int slot = 1; slot <= SLOTS; slot++) {
      client.enqueueAsync(message("first"));
      gate.awaitRequests(1);
    }
    return gate;
  }

  private static <T> T get(Future<T> future) throws Exception {
    return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
  }

  private static FilaException failure(Future<?> future) {
    ExecutionException failed = assertThrows(ExecutionException.class, () -> get(future));
    return assertInstanceOf(FilaException.class, failed.getCause());
  }

  @Test
  void aLoneCallGoesOutAtOnceAndAlone() throws Exception {
    for (int number = 0; number < 5; number++) {
      assertTrue(client.enqueue(message("x")).startsWith("x#"));
    }
    assertEquals(List.of(1, 1, 1, 1, 1), broker.enqueueSizes());
  }

  @Test
  void aRequestThatCannotBeMadeCostsNoSlot() throws Exception {
    AtomicInteger left = new AtomicInteger(2 * SLOTS);
    BatchRpc<AckRequest, Void> flawed =
        BatchRpc.of(
            FilaServiceGrpc.getAckBatchMethod(),
            acks -> {
              if (left.getAndDecrement() > 0) {
                throw new IllegalStateException("no request");
              }
              return AckBatchRequest.newBuilder().addAllAcks(acks).build();
            },
            AckBatchResponse::getResultsList,
            result -> null,
            result -> null);
    Connection connection = new Connection(builder().options());
    start((AutoCloseable) connection::close);
    Coalescer<AckRequest, Void> coalescer = new Coalescer<>(flawed, connection, new Room(1 << 20));
    for (int call = 0; call < 2 * SLOTS; call++) {
      Deadline deadline = Connection.deadline(PATIENCE);
      Item<AckRequest> ack = Wire.ack("orders", "m", null, 0);
      Future<Void> refused = coalescer.submit(ack, deadline, Map.of(), true);
      ExecutionException failed = assertThrows(ExecutionException.class, () -> get(refused));
      assertEquals("no request", failed.getCause().getMessage());
    }
    Deadline deadline = Connection.deadline(PATIENCE);
    get(coalescer.submit(Wire.ack("orders", "m", null, 0), deadline, Map.of(), true));
  }

  @Test
  void callsThatPileUpShareTheNextRequest() throws Exception {
    Gate gate = fillSlots(broker::store);
    List<CompletableFuture<String>> calls = new ArrayList<>();
    for (int caller = 0; caller < 50; caller++) {
      calls.add(client.enqueueAsync(message("caller-" + caller)));
    }
    gate.open();
    for (int caller = 0; caller < 50; caller++) {
      assertEquals("caller-" + caller, get(calls.get(caller)).split("#")[0]);
    }
    assertEquals(List.of(1, 1, 50), broker.enqueueSizes());
  }

  @Test
  void blockedThreadsShareRequestsToo() throws Exception {
    Gate gate = fillSlots(broker::store);
    List<Future<String>> calls = new ArrayList<>();
    for (int caller = 0; caller < 8; caller++) {
      String name = "caller-" + caller;
      calls.add(threads.submit(() -> client.enqueue(message(name))));
    }
    eventually(() -> client.shared().singles.enqueues().waitingCount() == 8);
    gate.open();
    Set<String> ids = new HashSet<>();
    for (Future<String> call : calls) {
      ids.add(get(call));
    }
    assertEquals(8, ids.size());
    assertEquals(List.of(1, 1, 8), broker.enqueueSizes());
  }

  @Test
  void aBatchStaysWithinItsLimits() throws Exception {
    Gate gate = fillSlots(broker::store);
    List<CompletableFuture<String>> calls = new ArrayList<>();
    String half = "x".repeat(BatchRpc.BYTES_MAX / 2 - 100);
    for (String payload : List.of(half, half, "small", "y".repeat(BatchRpc.BYTES_MAX + 1))) {
      calls.add(client.enqueueAsync(message(payload)));
    }
    for (int number = 0; number <= BatchRpc.ITEMS_MAX; number++) {
      calls.add(client.enqueueAsync(message("")));
    }
    gate.open();
    for (CompletableFuture<String> call : calls) {
      get(call);
    }
    // The larger one goes alone, and nothing that came later overtakes it in its request.
    List<Integer> sizes = broker.enqueueSizes();
    assertEquals(SLOTS + calls.size(), sizes.stream().mapToInt(Integer::intValue).sum());
    assertTrue(sizes.contains(3), () -> sizes.toString());
    assertEquals(BatchRpc.ITEMS_MAX, sizes.stream().mapToInt(Integer::intValue).max().getAsInt());
    for (EnqueueBatchRequest request : broker.requests("EnqueueBatch", EnqueueBatchRequest.class)) {
      assertTrue(
          request.getSerializedSize() <= BatchRpc.BYTES_MAX || request.getMessagesCount() == 1);
    }
  }

  @Test
  void acksNacksAndExtensionsAreSharedToo() throws Exception {
    share("AckBatch", ScriptedBroker::acked, () -> client.ack("orders", "m", null));
    share(
        "NackBatch",
        ScriptedBroker::nacked,
        () -> client.nack("orders", "m", null, "boom", NackOptions.NONE));
    share("ExtendLease", CoalescerTest::extended, () -> client.extend("orders", "m", null, null));
    assertEquals(12, total("AckBatch", AckBatchRequest.class));
    assertEquals(12, total("NackBatch", NackBatchRequest.class));
    assertEquals(12, total("ExtendLease", ExtendLeaseRequest.class));
  }

  private interface Settling {
    void settle() throws FilaException;
  }

  private void share(String method, ScriptedBroker.Answer answer, Settling call) throws Exception {
    Gate gate = new Gate(broker, method, answer);
    List<Future<?>> calls = new ArrayList<>();
    for (int number = 0; number < 12; number++) {
      calls.add(
          threads.submit(
              () -> {
                call.settle();
                return null;
              }));
    }
    gate.awaitRequests(SLOTS);
    gate.open();
    for (Future<?> pending : calls) {
      get(pending);
    }
  }

  private <T> int total(String method, Class<T> kind) {
    int total = 0;
    for (T request : broker.requests(method, kind)) {
      if (request instanceof AckBatchRequest acks) {
        total += acks.getAcksCount();
      } else if (request instanceof NackBatchRequest nacks) {
        total += nacks.getNacksCount();
      } else if (request instanceof ExtendLeaseRequest extensions) {
        total += extensions.getExtensionsCount();
      }
    }
    return total;
  }

  private static Object extended(Object request) {
    ExtendLeaseResponse.Builder answer = ExtendLeaseResponse.newBuilder();
    for (int count = ((ExtendLeaseRequest) request).getExtensionsCount(); count > 0; count--) {
      answer.addResultsBuilder().getLeaseExpiresAtBuilder().setSeconds(1_000_000);
    }
    return answer.build();
  }

  @Test
  void oneBadItemFailsAlone() throws Exception {
    Gate gate = fillSlots(CoalescerTest::picky);
    CompletableFuture<String> good = client.enqueueAsync(message("good"));
    CompletableFuture<String> bad = client.enqueueAsync(message("bad"));
    CompletableFuture<String> better = client.enqueueAsync(message("better"));
    gate.open();
    assertEquals("good", get(good));
    assertEquals("better", get(better));
    FilaException error = failure(bad);
    assertInstanceOf(QueueFullException.class, error);
    assertEquals("queue is full", error.getMessage());
    assertEquals("orders", error.queue());
    assertEquals(List.of(1, 1, 3), broker.enqueueSizes());
  }

  private static Object picky(Object request) {
    EnqueueBatchResponse.Builder answer = EnqueueBatchResponse.newBuilder();
    for (EnqueueRequest message : ((EnqueueBatchRequest) request).getMessagesList()) {
      String payload = message.getPayload().toString(UTF_8);
      if (payload.equals("bad")) {
        answer
            .addResultsBuilder()
            .getErrorBuilder()
            .setReason(ErrorReason.ERROR_REASON_QUEUE_FULL)
            .setMessage("queue is full");
      } else {
        answer.addResultsBuilder().setMessageId(payload);
      }
    }
    return answer.build();
  }

  @Test
  void eachCallerOfAFailedRequestGetsItsOwnException() throws Exception {
    Gate gate =
        fillSlots(
            request -> {
              throw new IllegalStateException("the script fails the request");
            });
    List<CompletableFuture<String>> calls = new ArrayList<>();
    for (int number = 0; number < 5; number++) {
      calls.add(client.enqueueAsync(EnqueueMessage.to("queue-" + number).build()));
    }
    broker.refuse("EnqueueBatch", Status.Code.RESOURCE_EXHAUSTED, "too much", null);
    gate.open();
    Set<FilaException> errors = new HashSet<>();
    for (int number = 0; number < 5; number++) {
      FilaException error = failure(calls.get(number));
      assertInstanceOf(ResourceExhaustedException.class, error);
      assertEquals("queue-" + number, error.queue());
      errors.add(error);
    }
    assertEquals(5, errors.size());
  }

  @Test
  void aShortTimeoutIsKeptInsideASharedRequest() throws Exception {
    Gate gate = fillSlots(broker::store);
    CompletableFuture<String> patient = client.enqueueAsync(message("patient"));
    CompletableFuture<String> hasty =
        client.withTimeout(Duration.ofMillis(100)).enqueueAsync(message("hasty"));
    FilaException error = failure(hasty);
    assertInstanceOf(DeadlineExceededException.class, error);
    assertTrue(error.getMessage().contains("not sent"), error.getMessage());
    gate.open();
    assertTrue(get(patient).startsWith("patient"));
    // Who left before the request was sent is not in it.
    assertEquals(List.of(1, 1, 1), broker.enqueueSizes());
  }

  @Test
  void aCallerLeavesARequestUnderWayAtItsOwnDeadline() throws Exception {
    broker.withoutPipelines();
    Gate first = fillSlots(broker::store);
    CompletableFuture<String> patient =
        client.withTimeout(Duration.ofSeconds(60)).enqueueAsync(message("patient"));
    CompletableFuture<String> hasty =
        client.withTimeout(Duration.ofSeconds(3)).enqueueAsync(message("hasty"));
    Gate second = new Gate(broker, "EnqueueBatch", broker::store);
    first.open();
    second.awaitRequests(1);
    ScriptedBroker.Seen shared = broker.calls("EnqueueBatch").get(SLOTS);
    // The request has the deadline of the most patient caller, so the others are not cut off.
    assertTrue(shared.secondsLeft() > 20, () -> shared.secondsLeft() + " s");
    FilaException error = failure(hasty);
    assertInstanceOf(DeadlineExceededException.class, error);
    assertTrue(error.getMessage().contains("unknown"), error.getMessage());
    second.open();
    assertTrue(get(patient).startsWith("patient"));
    assertEquals(List.of(1, 1, 2), broker.enqueueSizes());
  }

  @Test
  void cancellingOneCallLeavesTheOthersAlone() throws Exception {
    Gate first = fillSlots(broker::store);
    List<CompletableFuture<String>> calls = new ArrayList<>();
    for (int number = 0; number < 3; number++) {
      calls.add(client.enqueueAsync(message("m" + number)));
    }
    Gate second = new Gate(broker, "EnqueueBatch", broker::store);
    first.open();
    second.awaitRequests(1);
    calls.get(1).cancel(true);
    second.open();
    assertTrue(get(calls.get(0)).startsWith("m0"));
    assertTrue(get(calls.get(2)).startsWith("m2"));
    assertThrows(CancellationException.class, () -> get(calls.get(1)));
  }

  @Test
  void aCallCancelledBeforeItWasSentSendsNothing() throws Exception {
    Gate gate = fillSlots(broker::store);
    CompletableFuture<String> gone = client.enqueueAsync(message("gone"));
    CompletableFuture<String> stays = client.enqueueAsync(message("stays"));
    gone.cancel(true);
    gate.open();
    get(stays);
    assertEquals(List.of(1, 1, 1), broker.enqueueSizes());
  }

  @Test
  void aRequestThatAllHaveLeftIsCancelledAndItsSlotIsFree() throws Exception {
    broker.script("EnqueueBatch", (request, observer) -> {});
    List<CompletableFuture<String>> stuck = new ArrayList<>();
    for (int number = 0; number < SLOTS; number++) {
      stuck.add(client.enqueueAsync(message("stuck")));
    }
    eventually(() -> broker.seen.size() == SLOTS);
    broker.respond("EnqueueBatch", broker::store);
    stuck.forEach(call -> call.cancel(true));
    assertTrue(client.enqueue(message("x")).startsWith("x#"));
  }

  @Test
  void interruptingAThreadGivesItsCallUpAndNoOther() throws Exception {
    Gate gate = fillSlots(broker::store);
    CompletableFuture<Boolean> wasFlagged = new CompletableFuture<>();
    Thread blocked =
        new Thread(
            () -> {
              try {
                client.enqueue(message("interrupted"));
              } catch (CancelledException expected) {
                wasFlagged.complete(Thread.currentThread().isInterrupted());
              } catch (FilaException wrong) {
                wasFlagged.completeExceptionally(wrong);
              }
            });
    blocked.start();
    eventually(() -> client.shared().singles.enqueues().waitingCount() == 1);
    CompletableFuture<String> other = client.enqueueAsync(message("other"));
    blocked.interrupt();
    assertTrue(get(wasFlagged));
    gate.open();
    assertTrue(get(other).startsWith("other"));
    assertEquals(List.of(1, 1, 1), broker.enqueueSizes());
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.EnqueueBatchRequest;
import dev.faisca.fila.internal.v1.PipelineResponse;
import dev.faisca.fila.internal.v1.SettleGrantsResponse;
import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Batches travel through streams, and callers cannot tell but by the speed. */
class PipelineTest extends BrokerTest {
  private static final int MAX = Pipeline.REQUESTS_UNDER_WAY_MAX;
  private static final String KEY = "fk_0123456789.secret~key";

  private static <T> T get(Future<T> future) throws Exception {
    return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
  }

  private static FilaException failure(Future<?> future) {
    ExecutionException failed = assertThrows(ExecutionException.class, () -> get(future));
    return assertInstanceOf(FilaException.class, failed.getCause());
  }

  private Future<EnqueueResult> many(FilaClient from, String text) {
    return threads.submit(() -> from.enqueueMany(List.of(message(text))).get(0));
  }

  /** Calls one after the other, so that their requests have an order. */
  private List<Future<EnqueueResult>> hold(int count) throws Exception {
    List<Future<EnqueueResult>> calls = new ArrayList<>();
    for (int number = 0; number < count; number++) {
      int before = broker.seen.size();
      calls.add(many(client, "m" + number));
      if (number < MAX) {
        eventually(() -> broker.seen.size() > before);
      }
    }
    return calls;
  }

  private List<String> payloads() {
    return broker.requests("EnqueueBatch", EnqueueBatchRequest.class).stream()
        .flatMap(request -> request.getMessagesList().stream())
        .map(message -> message.getPayload().toString(UTF_8))
        .toList();
  }

  private Piping latest() {
    return broker.pipings.get(broker.pipings.size() - 1);
  }

  @Test
  void thereIsOnePipelineForEnqueuesAndOneForSettlements() throws Exception {
    SettleGrantsResponse.Builder settled = SettleGrantsResponse.newBuilder();
    settled.addResultsBuilder().setMessages(1);
    willAnswer("SettleGrants", settled.build());
    FilaClient keyed = connect(builder().apiKey(KEY));
    keyed.enqueue(message("a"));
    keyed.enqueueMany(List.of(message("b")));
    keyed.ack("orders", "m", null);
    keyed.nack("orders", "m", null, "no", NackOptions.NONE);
    keyed.ackGrant("orders", "t", List.of());
    assertEquals(2, broker.pipings.size());
    assertEquals(5, broker.seen.size());
    for (ScriptedBroker.Seen call : broker.seen) {
      int index = call.method().equals("EnqueueBatch") ? 0 : 1;
      assertEquals(broker.pipings.get(index), call.piping());
      assertEquals("Bearer " + KEY, call.metadata("authorization"));
    }
  }

  @Test
  void aClientThatSendsNoBatchOpensNoPipeline() throws Exception {
    client.enqueueMany(List.of());
    assertEquals(0, broker.pipings.size());
  }

  @Test
  void manyCallersGetTheirOwnAnswers() throws Exception {
    List<Future<EnqueueResult>> calls = new ArrayList<>();
    List<CompletableFuture<String>> singles = new ArrayList<>();
    for (int number = 0; number < 300; number++) {
      calls.add(many(client, "many-" + number));
      singles.add(client.enqueueAsync(message("single-" + number)));
    }
    for (int number = 0; number < 300; number++) {
      assertTrue(get(calls.get(number)).messageId().startsWith("many-" + number + "#"));
      assertTrue(get(singles.get(number)).startsWith("single-" + number + "#"));
    }
    assertEquals(1, broker.pipings.size());
  }

  @Test
  void noMoreThanSomeAreUnderWay() throws Exception {
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    List<Future<EnqueueResult>> calls = hold(MAX + 2);
    FilaException late = get(many(client.withTimeout(Duration.ofMillis(100)), "late")).error();
    assertInstanceOf(DeadlineExceededException.class, late);
    assertTrue(late.getMessage().contains("was not sent"), late.getMessage());
    assertEquals(MAX, broker.seen.size());
    gate.open();
    for (Future<EnqueueResult> call : calls) {
      assertNull(get(call).error());
    }
    assertFalse(payloads().contains("late"));
  }

  @Test
  void aRefusalIsItsOwnRequestsAndThePipelineGoesOn() throws Exception {
    FilaClient keyed = connect(builder().apiKey(KEY));
    broker.refuse("EnqueueBatch", Status.Code.RESOURCE_EXHAUSTED, "no: " + KEY, "OVERLOADED");
    FilaException single =
        assertThrows(OverloadedException.class, () -> keyed.enqueue(message("a")));
    FilaException many = keyed.enqueueMany(List.of(message("a"))).get(0).error();
    for (FilaException error : List.of(single, many)) {
      assertInstanceOf(OverloadedException.class, error);
      assertEquals("no: [redacted]", error.getMessage());
      assertEquals("RESOURCE_EXHAUSTED", error.code());
      assertEquals("OVERLOADED", error.reason());
      assertEquals("orders", error.queue());
    }
    broker.respond("EnqueueBatch", broker::store);
    assertTrue(keyed.enqueue(message("b")).startsWith("b#"));
    assertEquals(1, broker.pipings.size());
  }

  @Test
  void aRefusalForTheMomentIsRepeatedWhereThatIsSafe() throws Exception {
    AtomicInteger refused = new AtomicInteger();
    broker.script(
        "EnqueueBatch",
        (request, observer) -> {
          if (refused.incrementAndGet() < 3) {
            observer.onError(
                ScriptedBroker.refusal(Status.Code.UNAVAILABLE, "bye", "SHUTTING_DOWN"));
          } else {
            observer.onNext(broker.store(request));
          }
        });
    FilaClient quick = connect(builder().backoff(QUICK));
    EnqueueMessage safe = EnqueueMessage.to("orders").idempotencyKey("k").build();
    assertNotNull(quick.enqueue(safe));
    assertEquals(3, refused.getAndSet(0));
    assertThrows(ShuttingDownException.class, () -> quick.enqueue(message("x")));
    assertEquals(1, refused.get());
  }

  @Test
  void aPipelineThatBreaksFailsWhatIsUnderWayAndTheRestGoesToTheNext() throws Exception {
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    List<Future<EnqueueResult>> calls = hold(MAX + 3);
    latest().end(ScriptedBroker.refusal(Status.Code.UNAVAILABLE, "gone", "SHUTTING_DOWN"));
    gate.open();
    for (int number = 0; number < calls.size(); number++) {
      FilaException error = get(calls.get(number)).error();
      if (number < MAX) {
        assertInstanceOf(ShuttingDownException.class, error);
        assertEquals("gone", error.getMessage());
      } else {
        assertNull(error);
      }
    }
    assertEquals(MAX + 3, payloads().size());
    assertEquals(2, broker.pipings.size());
  }

  @Test
  void anEnqueueWithAKeySurvivesABreakAndOneWithoutIsNotRepeated() throws Exception {
    FilaClient quick = connect(builder().backoff(QUICK));
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    CompletableFuture<String> safe =
        quick.enqueueAsync(EnqueueMessage.to("orders").idempotencyKey("k").build());
    CompletableFuture<String> unsafe = quick.enqueueAsync(message("unsafe"));
    gate.awaitRequests(2);
    latest().end(Status.UNAVAILABLE.asRuntimeException());
    assertInstanceOf(UnavailableException.class, failure(unsafe));
    gate.open();
    assertTrue(get(safe).startsWith("#"));
    assertEquals(List.of("", "unsafe", ""), payloads());
  }

  @Test
  void anIdlePipelinesEndIsNoFailureOfTheNextRequest() throws Exception {
    for (int number = 1; number <= 5; number++) {
      assertTrue(client.enqueue(message("x")).startsWith("x#"));
      assertEquals(number, broker.pipings.size());
      latest().end(number % 2 == 0 ? null : Status.UNAVAILABLE.asRuntimeException());
      eventually(() -> !client.shared().connection.enqueues.isOpen());
    }
  }

  @Test
  void aPipelineThatEndsWithRequestsUnderWayLeftThemOpen() throws Exception {
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    CompletableFuture<String> call = client.enqueueAsync(message("x"));
    gate.awaitRequests(1);
    latest().end(null);
    assertInstanceOf(UnavailableException.class, failure(call));
    gate.open();
  }

  @Test
  void aBrokerWithoutPipelinesGetsUnaryCallsAndIsAskedOnce() throws Exception {
    broker.withoutPipelines();
    List<CompletableFuture<String>> calls =
        IntStream.range(0, 20).mapToObj(n -> client.enqueueAsync(message("m" + n))).toList();
    for (int number = 0; number < 20; number++) {
      assertTrue(get(calls.get(number)).startsWith("m" + number + "#"));
    }
    client.ack("orders", "m", null);
    assertNull(client.enqueueMany(List.of(message("x"))).get(0).error());
    assertEquals(1, broker.pipelinesRefused.get());
    assertTrue(broker.seen.stream().allMatch(call -> call.deadline() != null));
  }

  @Test
  void aCallerLeavesAtItsDeadlineAndDisturbsNobody() throws Exception {
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    Future<EnqueueResult> hasty = many(client.withTimeout(Duration.ofSeconds(3)), "hasty");
    gate.awaitRequests(1);
    Future<EnqueueResult> patient = many(client, "patient");
    gate.awaitRequests(1);
    FilaException error = get(hasty).error();
    assertInstanceOf(DeadlineExceededException.class, error);
    assertTrue(error.getMessage().contains("unknown"), error.getMessage());
    gate.open();
    assertTrue(get(patient).messageId().startsWith("patient#"));
    assertEquals(1, broker.pipings.size());
  }

  @Test
  void aPipelineThatNobodyWaitsForIsCancelled() throws Exception {
    broker.script("EnqueueBatch", (request, observer) -> {});
    CompletableFuture<String> call = client.enqueueAsync(message("x"));
    eventually(() -> broker.seen.size() == 1);
    call.cancel(true);
    await(latest().cancelled);
    broker.respond("EnqueueBatch", broker::store);
    assertTrue(client.enqueue(message("y")).startsWith("y#"));
  }

  @Test
  void anAnswerToAnotherRequestEndsThePipeline() throws Exception {
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    CompletableFuture<String> call = client.enqueueAsync(message("x"));
    gate.awaitRequests(1);
    PipelineResponse.Builder wrong = PipelineResponse.newBuilder();
    wrong.getAckBuilder();
    latest().send(wrong.build());
    assertInstanceOf(InternalException.class, failure(call));
    await(latest().cancelled);
    gate.open();
    assertTrue(client.enqueue(message("y")).startsWith("y#"));
  }

  @Test
  void aLargeRequestTravelsAlone() throws Exception {
    client.enqueue(EnqueueMessage.to("orders").payload(new byte[1 << 20]).build());
    client.enqueue(EnqueueMessage.to("orders").payload(new byte[1 << 19]).build());
    assertNull(broker.seen.get(0).piping());
    assertNotNull(broker.seen.get(1).piping());
  }

  @Test
  void closingEndsPipelinesAndWhoeverWaitsForThem() throws Exception {
    FilaClient idle = connect(builder());
    idle.enqueue(message("x"));
    idle.close();
    await(latest().halfClosed);
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    broker.seen.clear();
    List<Future<EnqueueResult>> calls = hold(MAX + 3);
    client.close();
    for (Future<EnqueueResult> call : calls) {
      Throwable error;
      try {
        error = get(call).error();
      } catch (ExecutionException refused) {
        // One of those that had to wait had not even begun.
        error = refused.getCause();
      }
      assertInstanceOf(ClientClosedException.class, error);
    }
    gate.open();
  }
}

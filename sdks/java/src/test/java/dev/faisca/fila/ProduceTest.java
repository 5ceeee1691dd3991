// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.protobuf.Timestamp;
import dev.faisca.fila.internal.v1.EnqueueBatchRequest;
import dev.faisca.fila.internal.v1.EnqueueBatchResponse;
import dev.faisca.fila.internal.v1.EnqueueRequest;
import dev.faisca.fila.internal.v1.ErrorReason;
import dev.faisca.fila.internal.v1.ListQueuesResponse;
import io.grpc.Status;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** What an enqueue sends, how many are split, and what is sent again. */
class ProduceTest extends BrokerTest {
  private static EnqueueMessage keyed(String key) {
    return EnqueueMessage.to("orders").idempotencyKey(key).build();
  }

  /** Answers a method's first calls with UNAVAILABLE, and the rest as the script says. */
  private void unavailableAtFirst(int calls, String method, ScriptedBroker.Answer answer) {
    AtomicInteger left = new AtomicInteger(calls);
    broker.script(
        method,
        (request, observer) -> {
          if (left.getAndDecrement() > 0) {
            observer.onError(ScriptedBroker.refusal(Status.Code.UNAVAILABLE, "away", null));
          } else {
            observer.onNext(answer.to(request));
            observer.onCompleted();
          }
        });
  }

  @Test
  void everyFieldTravels() throws Exception {
    client.enqueue(
        EnqueueMessage.to("orders")
            .headers(Map.of("a", "b"))
            .payload("hello".getBytes(UTF_8))
            .fairnessKey("acme")
            .weight(3)
            .throttleKeys(List.of("mail", "sms"))
            .throttleCost(2)
            .delay(Duration.ofMillis(1500))
            .deliverAt(Instant.ofEpochSecond(5, 6))
            .ttl(Duration.ofSeconds(60))
            .idempotencyKey("k")
            .build());
    EnqueueRequest expected =
        EnqueueRequest.newBuilder()
            .setQueue("orders")
            .putHeaders("a", "b")
            .setPayload(ByteString.copyFromUtf8("hello"))
            .setFairnessKey("acme")
            .setWeight(3)
            .addThrottleKeys("mail")
            .addThrottleKeys("sms")
            .setThrottleCost(2)
            .setDelayMs(1500)
            .setDeliverAt(Timestamp.newBuilder().setSeconds(5).setNanos(6))
            .setTtlMs(60_000)
            .setIdempotencyKey("k")
            .build();
    assertEquals(
        EnqueueBatchRequest.newBuilder().addMessages(expected).build(),
        broker.seen.get(0).request());
  }

  @Test
  void theShortFormTakesHeadersAndPayload() throws Exception {
    assertEquals("x#1", client.enqueue("orders", Map.of("a", "b"), new byte[] {'x'}));
    EnqueueRequest sent = ((EnqueueBatchRequest) broker.seen.get(0).request()).getMessages(0);
    assertEquals(Map.of("a", "b"), sent.getHeadersMap());
  }

  @Test
  void nonsenseIsRefusedByName() {
    EnqueueMessage.Builder message = EnqueueMessage.to("orders");
    IllegalArgumentException error =
        assertThrows(IllegalArgumentException.class, () -> message.weight(-1));
    assertEquals("weight must not be negative, got -1", error.getMessage());
    assertThrows(IllegalArgumentException.class, () -> message.delay(Duration.ofMillis(-1)));
    NullPointerException missing =
        assertThrows(NullPointerException.class, () -> EnqueueMessage.to(null));
    assertEquals("queue must not be null", missing.getMessage());
    assertFalse(message("secret").toString().contains("secret"));
  }

  @Test
  void manyMessagesAreSplitByCountAndKeepTheirOrder() throws Exception {
    int count = 2 * BatchRpc.ITEMS_MAX + 5;
    List<EnqueueResult> results =
        client.enqueueMany(IntStream.range(0, count).mapToObj(n -> message("m" + n)).toList());
    assertEquals(List.of(1000, 1000, 5), broker.enqueueSizes());
    for (int index = 0; index < count; index++) {
      assertEquals("m" + index + "#" + (index + 1), results.get(index).orThrow());
    }
  }

  @Test
  void manyMessagesAreSplitByBytes() throws Exception {
    String third = "x".repeat(BatchRpc.BYTES_MAX / 3);
    client.enqueueMany(
        List.of(
            message(third),
            message(third),
            message(third),
            message("y".repeat(BatchRpc.BYTES_MAX + 1)),
            message("z")));
    assertEquals(List.of(2, 1, 1, 1), broker.enqueueSizes());
  }

  @Test
  void aRefusedMessageDoesNotStopTheOthers() throws Exception {
    EnqueueBatchResponse.Builder answer = EnqueueBatchResponse.newBuilder();
    answer.addResultsBuilder().setMessageId("a").setDuplicate(true);
    answer
        .addResultsBuilder()
        .getErrorBuilder()
        .setReason(ErrorReason.ERROR_REASON_QUEUE_NOT_FOUND)
        .setMessage("no");
    broker.respond("EnqueueBatch", request -> answer.build());
    List<EnqueueResult> results = client.enqueueMany(List.of(message("a"), message("b")));
    assertEquals(new EnqueueResult("a", true, null), results.get(0));
    assertInstanceOf(QueueNotFoundException.class, results.get(1).error());
    assertEquals("orders", results.get(1).error().queue());
    assertEquals("", results.get(1).messageId());
  }

  @Test
  void nothingIsSentAfterARequestThatFailedAsAWhole() throws Exception {
    AtomicInteger number = new AtomicInteger();
    broker.script(
        "EnqueueBatch",
        (request, observer) -> {
          if (number.incrementAndGet() == 2) {
            observer.onError(
                ScriptedBroker.refusal(Status.Code.INTERNAL, "broken", "STORAGE_FAILED"));
          } else {
            observer.onNext(broker.store(request));
            observer.onCompleted();
          }
        });
    List<EnqueueResult> results =
        client.enqueueMany(IntStream.range(0, 2500).mapToObj(n -> message("m")).toList());
    assertEquals(List.of(1000, 1000), broker.enqueueSizes());
    assertEquals(2500, results.size());
    assertNull(results.get(999).error());
    assertInstanceOf(StorageFailedException.class, results.get(1000).error());
    assertEquals("broken", results.get(1999).error().getMessage());
    assertInstanceOf(StorageFailedException.class, results.get(2000).error());
    assertEquals(
        "not sent, because an earlier request of this call failed: broken",
        results.get(2499).error().getMessage());
  }

  @Test
  void noMessagesNeedNoRequest() throws Exception {
    assertEquals(List.of(), client.enqueueMany(List.of()));
    assertEquals(List.of(), broker.seen);
  }

  // --- Retries ----------------------------------------------------------------------------------

  @Test
  void withoutAnIdempotencyKeyNothingIsSentTwice() throws Exception {
    unavailableAtFirst(1, "EnqueueBatch", broker::store);
    assertThrows(UnavailableException.class, () -> client.enqueue(message("x")));
    assertEquals(1, broker.seen.size());
    unavailableAtFirst(1, "EnqueueBatch", broker::store);
    List<EnqueueResult> results = client.enqueueMany(List.of(keyed("k"), message("x")));
    assertInstanceOf(UnavailableException.class, results.get(0).error());
    assertEquals(2, broker.seen.size());
  }

  @Test
  void withIdempotencyKeysItIsSentAgainWhileTheBrokerIsAway() throws Exception {
    FilaClient quick = connect(builder().backoff(QUICK));
    unavailableAtFirst(3, "EnqueueBatch", broker::store);
    assertEquals("#1", quick.enqueue(keyed("k")));
    assertEquals(4, broker.seen.size());
    unavailableAtFirst(2, "EnqueueBatch", broker::store);
    List<EnqueueResult> results = quick.enqueueMany(List.of(keyed("k"), keyed("l")));
    assertEquals(List.of("#2", "#3"), results.stream().map(EnqueueResult::messageId).toList());
    assertEquals(7, broker.seen.size());
  }

  @Test
  void onlyUnavailableIsTriedAgain() {
    broker.refuse("EnqueueBatch", Status.Code.RESOURCE_EXHAUSTED, "much", "OVERLOADED");
    assertThrows(OverloadedException.class, () -> client.enqueue(keyed("k")));
    assertEquals(1, broker.seen.size());
  }

  @Test
  void tryingAgainEndsWithTheDeadline() {
    broker.refuse("EnqueueBatch", Status.Code.UNAVAILABLE, "away", null);
    FilaClient hasty = connect(builder().backoff(QUICK).timeout(Duration.ofMillis(500)));
    FilaException error = assertThrows(FilaException.class, () -> hasty.enqueue(keyed("k")));
    assertTrue(error.isRetryable());
    // The waits are up to 0.1 s long; a hot loop would make hundreds.
    assertTrue(broker.seen.size() < 200, () -> broker.seen.size() + " requests");
  }

  @Test
  void readsAreTriedAgainAndSettlingIsNot() throws Exception {
    FilaClient quick = connect(builder().backoff(QUICK));
    unavailableAtFirst(2, "ListQueues", request -> ListQueuesResponse.getDefaultInstance());
    assertEquals(List.of(), quick.listQueues());
    assertEquals(3, broker.calls("ListQueues").size());
    unavailableAtFirst(1, "AckBatch", ScriptedBroker::acked);
    assertThrows(UnavailableException.class, () -> quick.ack("orders", "m", null));
    assertEquals(1, broker.calls("AckBatch").size());
  }

  @Test
  void aCallThatWaitsToBeSentAgainCanBeCancelled() throws Exception {
    broker.refuse("EnqueueBatch", Status.Code.UNAVAILABLE, "away", null);
    Duration longest = Duration.ofMinutes(10);
    FilaClient patient =
        connect(builder().timeout(Duration.ofHours(10)).backoff(new Backoff(longest, longest)));
    CompletableFuture<String> call = patient.enqueueAsync(keyed("k"));
    eventually(() -> broker.seen.size() == 1);
    assertTrue(call.cancel(true));
    assertTrue(call.isCancelled());
  }
}

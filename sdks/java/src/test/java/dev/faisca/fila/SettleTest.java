// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.faisca.fila.internal.v1.AckBatchRequest;
import dev.faisca.fila.internal.v1.AckBatchResponse;
import dev.faisca.fila.internal.v1.AckRequest;
import dev.faisca.fila.internal.v1.EnqueueBatchRequest;
import dev.faisca.fila.internal.v1.ErrorReason;
import dev.faisca.fila.internal.v1.ExtendLeaseRequest;
import dev.faisca.fila.internal.v1.ExtendLeaseResponse;
import dev.faisca.fila.internal.v1.ItemResult;
import dev.faisca.fila.internal.v1.LeaseExtension;
import dev.faisca.fila.internal.v1.NackBatchRequest;
import dev.faisca.fila.internal.v1.NackRequest;
import dev.faisca.fila.internal.v1.ReceiveRequest;
import dev.faisca.fila.internal.v1.ReceiveResponse;
import dev.faisca.fila.internal.v1.SettleGrantsRequest;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Messages that were received show what the broker said, and are settled with its proof. */
class SettleTest extends BrokerTest {
  private void willReceive(String... ids) {
    ReceiveResponse answer =
        ReceiveResponse.newBuilder()
            .addAllMessages(ScriptedBroker.frame(ids).getMessagesList())
            .build();
    broker.respond("Receive", request -> answer);
  }

  private List<ConsumeMessage> receive(String... ids) throws FilaException {
    willReceive(ids);
    return client.receive("orders", ids.length, Duration.ZERO);
  }

  @Test
  void receiveSaysHowManyAndHowLong() throws Exception {
    willReceive();
    Duration wait = Duration.ofMillis(20);
    assertEquals(List.of(), client.receive("orders", 5, wait, Duration.ofMillis(7)));
    assertEquals(
        ReceiveRequest.newBuilder()
            .setQueue("orders")
            .setMaxMessages(5)
            .setWaitMs(20)
            .setVisibilityTimeoutMs(7)
            .build(),
        broker.seen.get(0).request());
    assertThrows(IllegalArgumentException.class, () -> client.receive("orders", -1, Duration.ZERO));
  }

  @Test
  void aMessageShowsAllOfItsFields() throws Exception {
    dev.faisca.fila.internal.v1.Message.Builder raw =
        ScriptedBroker.message("m-1", new byte[] {1, 2}).toBuilder().putHeaders("a", "b");
    raw.getMetadataBuilder()
        .setWeight(3)
        .addThrottleKeys("mail")
        .setAttemptCount(2)
        .setLastError("boom")
        .addFailures(dev.faisca.fila.internal.v1.Failure.newBuilder().setCauseValue(1));
    raw.getTimestampsBuilder().getEnqueuedAtBuilder().setSeconds(5).setNanos(7_000_000);
    raw.getTimestampsBuilder().getLeaseExpiresAtBuilder().setSeconds(9);
    ReceiveResponse answer = ReceiveResponse.newBuilder().addMessages(raw).build();
    broker.respond("Receive", request -> answer);
    ConsumeMessage message = client.receive("orders", 1, Duration.ZERO).get(0);
    assertEquals("m-1", message.id());
    assertEquals("orders", message.queue());
    assertEquals(Map.of("a", "b"), message.headers());
    assertArrayEquals(new byte[] {1, 2}, message.payload());
    assertEquals("default", message.fairnessKey());
    assertEquals(3, message.weight());
    assertEquals(List.of("mail"), message.throttleKeys());
    assertEquals(2, message.attemptCount());
    assertEquals("token-of-m-1", message.leaseToken());
    assertEquals("boom", message.lastError());
    assertEquals(List.of(new Failure(null, FailureCause.NACK, "")), message.failures());
    assertEquals(Instant.ofEpochMilli(5007), message.enqueuedAt());
    assertEquals(Instant.ofEpochSecond(9), message.leaseExpiresAt());
    assertThrows(UnsupportedOperationException.class, () -> message.headers().put("c", "d"));
    assertEquals(
        "ConsumeMessage(id=m-1, queue=orders, fairnessKey=default, attemptCount=2)",
        message.toString());
  }

  @Test
  void timesThatTheBrokerDoesNotSayAreNull() throws Exception {
    ConsumeMessage message = receive("a").get(0);
    assertNull(message.enqueuedAt());
    assertNull(message.leaseExpiresAt());
  }

  @Test
  void settlingAMessageNamesItsDelivery() throws Exception {
    ExtendLeaseResponse.Builder extended = ExtendLeaseResponse.newBuilder();
    extended.addResultsBuilder().getLeaseExpiresAtBuilder().setSeconds(1_900_000_000);
    broker.respond("ExtendLease", request -> extended.build());
    List<ConsumeMessage> messages = receive("a", "b");
    ConsumeMessage first = messages.get(0);
    assertEquals(Instant.ofEpochSecond(1_900_000_000), first.extend(Duration.ofMillis(5000)));
    assertEquals(Instant.ofEpochSecond(1_900_000_000), first.leaseExpiresAt());
    first.extend();
    first.ack();
    Duration later = Duration.ofMillis(10);
    messages.get(1).nack("boom", NackOptions.NONE.withRetryAfter(later).withThrottleKey("mail"));
    List<ExtendLeaseRequest> extensions = broker.requests("ExtendLease", ExtendLeaseRequest.class);
    LeaseExtension.Builder extension =
        LeaseExtension.newBuilder()
            .setQueue("orders")
            .setMessageId("a")
            .setLeaseToken("token-of-a");
    assertEquals(extension.build(), extensions.get(1).getExtensions(0));
    assertEquals(extension.setExtendMs(5000).build(), extensions.get(0).getExtensions(0));
    assertEquals(
        AckRequest.newBuilder()
            .setQueue("orders")
            .setMessageId("a")
            .setLeaseToken("token-of-a")
            .build(),
        broker.requests("AckBatch", AckBatchRequest.class).get(0).getAcks(0));
    assertEquals(
        NackRequest.newBuilder()
            .setQueue("orders")
            .setMessageId("b")
            .setLeaseToken("token-of-b")
            .setError("boom")
            .setRetryAfterMs(10)
            .setThrottleKey("mail")
            .build(),
        broker.requests("NackBatch", NackBatchRequest.class).get(0).getNacks(0));
  }

  @Test
  void aPlainNackIsAFailureAndCarriesNoTime() throws Exception {
    receive("a").get(0).nack("boom");
    client.nack("orders", "m", null, null, NackOptions.NONE);
    for (NackBatchRequest request : broker.requests("NackBatch", NackBatchRequest.class)) {
      assertFalse(request.getNacks(0).hasRetryAfterMs());
    }
  }

  @Test
  void aNackMaySayThatTryingAgainWouldNotHelp() throws Exception {
    receive("a").get(0).nack("hopeless", NackOptions.DEAD_LETTER);
    client.nackGrant("orders", "t", "hopeless", NackOptions.DEAD_LETTER, List.of());
    NackRequest nack = broker.requests("NackBatch", NackBatchRequest.class).get(0).getNacks(0);
    assertEquals(true, nack.getDeadLetter());
    assertFalse(nack.hasRetryAfterMs());
    var grants = broker.requests("SettleGrants", SettleGrantsRequest.class);
    assertEquals(true, grants.get(0).getSettlements(0).getNack().getDeadLetter());
  }

  @Test
  void shortTimesAreRoundedUpAndNotToNothing() throws Exception {
    Duration tiny = Duration.ofNanos(1);
    receive("a").get(0).nack("later", NackOptions.NONE.withRetryAfter(tiny));
    Duration more = Duration.ofNanos(1_000_001);
    client.enqueue(EnqueueMessage.to("orders").ttl(tiny).delay(more).build());
    NackRequest nack = broker.requests("NackBatch", NackBatchRequest.class).get(0).getNacks(0);
    assertEquals(1, nack.getRetryAfterMs());
    var sent = broker.requests("EnqueueBatch", EnqueueBatchRequest.class).get(0).getMessages(0);
    assertEquals(List.of(1L, 2L), List.of(sent.getTtlMs(), sent.getDelayMs()));
  }

  @Test
  void aTextThatIsNoneIsRefusedByName() {
    String half = "x\ud83d";
    Map<String, Executable> calls =
        Map.of(
            "queue", () -> client.enqueue(half, Map.of(), new byte[0]),
            "key", () -> EnqueueMessage.to("orders").header(half, ""),
            "the value of header k", () -> EnqueueMessage.to("orders").header("k", half),
            "fairnessKey", () -> EnqueueMessage.to("orders").fairnessKey(half),
            "throttleKeys", () -> EnqueueMessage.to("orders").throttleKeys(List.of(half)),
            "error", () -> client.nack("orders", "m", "t", half, NackOptions.NONE),
            "leaseToken", () -> client.ack("orders", "m", half),
            "value", () -> client.setConfig("key", half));
    calls.forEach(
        (field, call) -> {
          var error = assertThrows(IllegalArgumentException.class, call);
          assertEquals(field + " is no text: half of a surrogate pair at 1", error.getMessage());
        });
    assertEquals(List.of(), broker.seen);
    assertEquals("orders", EnqueueMessage.to("orders").header("\ud83d\ude00", "").build().queue());
  }

  @Test
  void settlingNeedNotBeWaitedFor() throws Exception {
    List<ConsumeMessage> messages = receive("a", "b");
    messages.get(0).ackAsync().get(1, TimeUnit.MINUTES);
    messages.get(1).nackAsync("boom", NackOptions.NONE).get(1, TimeUnit.MINUTES);
    assertEquals(1, broker.calls("AckBatch").size());
    assertEquals(1, broker.calls("NackBatch").size());
  }

  @Test
  void manyMessagesAreSettledWithOneOutcomeEach() throws Exception {
    broker.respond("AckBatch", SettleTest::picky);
    List<ConsumeMessage> messages = receive("a", "b", "c");
    List<SettleResult> results = client.ackMany(messages);
    assertEquals(List.of("a", "b", "c"), results.stream().map(SettleResult::messageId).toList());
    assertNull(results.get(0).error());
    assertNull(results.get(2).error());
    FilaException error = results.get(1).error();
    assertInstanceOf(LeaseExpiredException.class, error);
    assertEquals(List.of("orders", "b"), List.of(error.queue(), error.messageId()));
    client.nackMany(messages, "boom").forEach(result -> assertNull(result.error()));
    assertEquals(
        List.of("boom", "boom", "boom"),
        broker.requests("NackBatch", NackBatchRequest.class).get(0).getNacksList().stream()
            .map(NackRequest::getError)
            .toList());
  }

  private static Object picky(Object request) {
    AckBatchResponse.Builder answer = AckBatchResponse.newBuilder();
    for (AckRequest ack : ((AckBatchRequest) request).getAcksList()) {
      ItemResult.Builder result = answer.addResultsBuilder();
      if (ack.getMessageId().equals("b")) {
        result
            .getErrorBuilder()
            .setReason(ErrorReason.ERROR_REASON_LEASE_EXPIRED)
            .setMessage("too late");
      }
    }
    return answer.build();
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.AckBatchRequest;
import dev.faisca.fila.internal.v1.AckBatchResponse;
import dev.faisca.fila.internal.v1.AckRequest;
import dev.faisca.fila.internal.v1.ErrorReason;
import dev.faisca.fila.internal.v1.GrantNack;
import dev.faisca.fila.internal.v1.GrantSettlement;
import dev.faisca.fila.internal.v1.ItemResult;
import dev.faisca.fila.internal.v1.ReceiveResponse;
import dev.faisca.fila.internal.v1.SettleGrantsRequest;
import dev.faisca.fila.internal.v1.SettleGrantsResponse;
import io.grpc.Status;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** Whole frames: acks of all their messages travel as one; nobody can tell by the outcome. */
class GrantsTest extends BrokerTest {
  private final List<List<ConsumeMessage>> frames = new ArrayList<>();

  /** Receives frames of so many messages: t0-0, t0-1, ... under the token t0. */
  private List<ConsumeMessage> receive(int... sizes) throws FilaException {
    List<ConsumeMessage> all = new ArrayList<>();
    for (int size : sizes) {
      String token = "t" + frames.size();
      ReceiveResponse.Builder answer = ReceiveResponse.newBuilder();
      for (int n = 0; n < size; n++) {
        var raw = ScriptedBroker.message(token + "-" + n, new byte[0]).toBuilder();
        raw.getMetadataBuilder().setLeaseToken(token);
        answer.addMessages(raw);
      }
      willAnswer("Receive", answer.build());
      frames.add(client.receive("orders", size, Duration.ZERO));
      all.addAll(frames.get(frames.size() - 1));
    }
    return all;
  }

  /** Answers settlements with what was expected, and with errors by token. */
  private void settle(Map<String, ErrorReason> refused) {
    broker.respond(
        "SettleGrants",
        request -> {
          SettleGrantsResponse.Builder answer = SettleGrantsResponse.newBuilder();
          for (GrantSettlement item : ((SettleGrantsRequest) request).getSettlementsList()) {
            var result = answer.addResultsBuilder();
            ErrorReason reason = refused.get(item.getLeaseToken());
            if (reason == null) {
              result.setMessages(item.getExpectedMessages());
            } else {
              result.getErrorBuilder().setReason(reason);
            }
          }
          return answer.build();
        });
  }

  private List<String> settlements() {
    return broker.requests("SettleGrants", SettleGrantsRequest.class).stream()
        .flatMap(request -> request.getSettlementsList().stream())
        .map(item -> item.getLeaseToken() + " " + item.getExpectedMessages())
        .toList();
  }

  private List<String> acked() {
    return broker.requests("AckBatch", AckBatchRequest.class).stream()
        .flatMap(request -> request.getAcksList().stream())
        .map(AckRequest::getMessageId)
        .toList();
  }

  private static boolean isAllDone(List<SettleResult> results) {
    return results.stream().map(SettleResult::error).allMatch(Objects::isNull);
  }

  @Test
  void framesThatAreAckedTogetherTravelAsOne() throws Exception {
    settle(Map.of());
    List<SettleResult> results = client.ackMany(receive(3, 2500));
    assertEquals(2503, results.size());
    assertTrue(isAllDone(results));
    assertEquals(List.of("t0 3", "t1 2500"), settlements());
    assertEquals(List.of(), acked());
  }

  @Test
  void whatIsNotWholeIsAckedOneByOne() throws Exception {
    settle(Map.of());
    List<ConsumeMessage> all = receive(3, 1, 2);
    List<ConsumeMessage> some = List.of(all.get(0), all.get(1), all.get(3), all.get(4), all.get(4));
    assertTrue(isAllDone(client.ackMany(some)));
    assertEquals(List.of(), settlements());
    assertEquals(List.of("t0-0", "t0-1", "t1-0", "t2-0", "t2-0"), acked());
  }

  @Test
  void aFrameThatIsRefused() throws Exception {
    settle(
        Map.of(
            "t0", ErrorReason.ERROR_REASON_LEASE_EXPIRED,
            "t1", ErrorReason.ERROR_REASON_QUEUE_NOT_FOUND));
    AckBatchResponse.Builder late = AckBatchResponse.newBuilder();
    late.addResults(ItemResult.getDefaultInstance());
    late.addResultsBuilder()
        .getErrorBuilder()
        .setReason(ErrorReason.ERROR_REASON_LEASE_EXPIRED);
    willAnswer("AckBatch", late.build());
    List<SettleResult> results = client.ackMany(receive(2, 2, 2));
    assertTrue(isAllDone(List.of(results.get(0), results.get(4), results.get(5))));
    assertInstanceOf(LeaseExpiredException.class, results.get(1).error());
    assertInstanceOf(QueueNotFoundException.class, results.get(2).error());
    assertEquals("t1-1", results.get(3).error().messageId());
    assertEquals(List.of("t0-0", "t0-1"), acked());
  }

  @Test
  void nothingIsAckedAfterGrantsThatCouldNotBeSettled() throws Exception {
    broker.refuse("SettleGrants", Status.Code.INTERNAL, "broken", "INTERNAL");
    List<SettleResult> results = client.ackMany(receive(2, 2).subList(0, 3));
    for (SettleResult result : results) {
      assertInstanceOf(InternalException.class, result.error());
    }
    assertEquals(List.of(), acked());
  }

  @Test
  void aBrokerThatKnowsNoGrantsIsAskedOnce() throws Exception {
    broker.withoutPipelines();
    broker.refuse("SettleGrants", Status.Code.UNIMPLEMENTED, "what?", null);
    receive(2, 2);
    for (List<ConsumeMessage> frame : frames) {
      assertTrue(isAllDone(client.ackMany(frame)));
    }
    assertEquals(1, broker.requests("SettleGrants", SettleGrantsRequest.class).size());
    assertEquals(List.of("t0-0", "t0-1", "t1-0", "t1-1"), acked());
  }

  @Test
  void concurrentAcksOfAFrameAreOne() throws Exception {
    settle(Map.of());
    List<ConsumeMessage> all = receive(2, 2, 5);
    CountDownLatch open = new CountDownLatch(1);
    broker.script(
        "AckBatch",
        (request, observer) ->
            threads.execute(
                () -> {
                  try {
                    open.await();
                  } catch (InterruptedException stop) {
                    return;
                  }
                  observer.onNext(
                      AckBatchResponse.newBuilder()
                          .addResults(ItemResult.getDefaultInstance())
                          .build());
                  observer.onCompleted();
                }));
    List<CompletableFuture<Void>> acks = new ArrayList<>();
    acks.add(all.get(0).ackAsync()); // These two take the slots.
    acks.add(all.get(2).ackAsync());
    frames.get(2).forEach(message -> acks.add(message.ackAsync()));
    open.countDown();
    for (CompletableFuture<Void> ack : acks) {
      ack.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
    }
    assertEquals(List.of("t2 5"), settlements());
  }

  @Test
  void aGrantIsSettledByItsToken() throws Exception {
    SettleGrantsResponse.Builder answer = SettleGrantsResponse.newBuilder();
    answer.addResultsBuilder().setMessages(7).getLeaseExpiresAtBuilder().setSeconds(1_900_000_000);
    willAnswer("SettleGrants", answer.build());
    assertEquals(7, client.ackGrant("orders", "t", List.of("a", "b")));
    NackOptions atOnce = NackOptions.NONE.withRetryAfter(Duration.ZERO).withThrottleKey("k");
    assertEquals(7, client.nackGrant("orders", "t", "no", atOnce, List.of()));
    assertEquals(
        Instant.ofEpochSecond(1_900_000_000),
        client.extendGrant("orders", "t", Duration.ofMillis(500), List.of()));
    List<GrantSettlement> sent =
        broker.requests("SettleGrants", SettleGrantsRequest.class).stream()
            .map(request -> request.getSettlements(0))
            .toList();
    assertTrue(sent.get(0).hasAck());
    assertEquals(List.of("a", "b"), sent.get(0).getExceptMessageIdsList());
    assertEquals(
        GrantNack.newBuilder().setError("no").setRetryAfterMs(0).setThrottleKey("k").build(),
        sent.get(1).getNack());
    assertEquals(500, sent.get(2).getExtend().getExtendMs());
    settle(Map.of("t", ErrorReason.ERROR_REASON_LEASE_EXPIRED));
    assertThrows(LeaseExpiredException.class, () -> client.ackGrant("orders", "t", List.of()));
  }
}

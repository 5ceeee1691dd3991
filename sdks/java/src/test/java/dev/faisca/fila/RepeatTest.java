// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.faisca.fila.internal.v1.AckBatchRequest;
import dev.faisca.fila.internal.v1.AckBatchResponse;
import dev.faisca.fila.internal.v1.ErrorReason;
import dev.faisca.fila.internal.v1.ItemError;
import dev.faisca.fila.internal.v1.ItemResult;
import dev.faisca.fila.internal.v1.NackBatchRequest;
import dev.faisca.fila.internal.v1.NackBatchResponse;
import dev.faisca.fila.internal.v1.ReceiveResponse;
import dev.faisca.fila.internal.v1.SettleGrantsRequest;
import dev.faisca.fila.internal.v1.SettleGrantsResponse;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** A settlement with its token is sent again while the broker is away; one without never is. */
class RepeatTest extends BrokerTest {
  private FilaClient quick;

  @BeforeEach
  void connect() {
    quick = connect(builder().backoff(QUICK));
  }

  /** Answers the first request of a method with UNAVAILABLE, as if its answer had been lost. */
  private AtomicInteger loseFirst(String method, ScriptedBroker.Answer then) {
    AtomicInteger requests = new AtomicInteger();
    broker.script(
        method,
        (request, observer) -> {
          if (requests.incrementAndGet() == 1) {
            observer.onError(
                ScriptedBroker.refusal(Status.Code.UNAVAILABLE, "away", "SHUTTING_DOWN"));
          } else {
            observer.onNext(then.to(request));
            observer.onCompleted();
          }
        });
    return requests;
  }

  private static ItemResult failed(ErrorReason reason) {
    return ItemResult.newBuilder().setError(ItemError.newBuilder().setReason(reason)).build();
  }

  private static ScriptedBroker.Answer acks(ErrorReason reason) {
    return request -> {
      AckBatchResponse.Builder answer = AckBatchResponse.newBuilder();
      ((AckBatchRequest) request).getAcksList().forEach(ack -> answer.addResults(failed(reason)));
      return answer.build();
    };
  }

  private static ScriptedBroker.Answer nacks(ErrorReason reason) {
    return request -> {
      NackBatchResponse.Builder answer = NackBatchResponse.newBuilder();
      ((NackBatchRequest) request)
          .getNacksList()
          .forEach(nack -> answer.addResults(failed(reason)));
      return answer.build();
    };
  }

  private void nack(String token) throws FilaException {
    quick.nack("orders", "m", token, "no", NackOptions.NONE);
  }

  @Test
  void aSettlementWithItsTokenIsSentAgain() throws Exception {
    AtomicInteger acks = loseFirst("AckBatch", ScriptedBroker::acked);
    AtomicInteger nacks = loseFirst("NackBatch", ScriptedBroker::nacked);
    quick.ack("orders", "m", "t");
    nack("t");
    assertEquals(List.of(2, 2), List.of(acks.get(), nacks.get()));
  }

  @Test
  void oneWithoutATokenIsNot() {
    AtomicInteger acks = loseFirst("AckBatch", ScriptedBroker::acked);
    AtomicInteger nacks = loseFirst("NackBatch", ScriptedBroker::nacked);
    AtomicInteger grants = loseFirst("SettleGrants", ScriptedBroker::settled);
    assertThrows(ShuttingDownException.class, () -> quick.ack("orders", "m", null));
    assertThrows(ShuttingDownException.class, () -> nack(""));
    assertThrows(ShuttingDownException.class, () -> quick.ackGrant("orders", "t", List.of()));
    assertEquals(List.of(1, 1, 1), List.of(acks.get(), nacks.get(), grants.get()));
  }

  @Test
  void whatARepeatDoesNotFindWasDoneBefore() throws Exception {
    loseFirst("AckBatch", acks(ErrorReason.ERROR_REASON_MESSAGE_NOT_FOUND));
    quick.ack("orders", "m", "t");
    loseFirst("NackBatch", nacks(ErrorReason.ERROR_REASON_MESSAGE_NOT_FOUND));
    nack("t");
    loseFirst("NackBatch", nacks(ErrorReason.ERROR_REASON_LEASE_EXPIRED));
    nack("t");
  }

  @Test
  void withoutARepeatItIsAnErrorAndSoIsALeaseThatHasEndedForAnAck() {
    loseFirst("AckBatch", acks(ErrorReason.ERROR_REASON_LEASE_EXPIRED));
    assertThrows(LeaseExpiredException.class, () -> quick.ack("orders", "m", "t"));
    broker.respond("AckBatch", acks(ErrorReason.ERROR_REASON_MESSAGE_NOT_FOUND));
    broker.respond("NackBatch", nacks(ErrorReason.ERROR_REASON_LEASE_EXPIRED));
    assertThrows(MessageNotFoundException.class, () -> quick.ack("orders", "m", "t"));
    assertThrows(LeaseExpiredException.class, () -> nack("t"));
  }

  @Test
  void itIsSentAgainWithinItsDeadlineOnly() {
    broker.refuse("AckBatch", Status.Code.UNAVAILABLE, "away", "SHUTTING_DOWN");
    FilaClient hasty = quick.withTimeout(Duration.ofMillis(300));
    Executable ack = () -> hasty.ack("orders", "m", "t");
    FilaException error = assertThrows(FilaException.class, ack);
    assertEquals(true, error.isRetryable());
  }

  private List<ConsumeMessage> receive(String... ids) throws FilaException {
    ReceiveResponse.Builder answer = ReceiveResponse.newBuilder();
    answer.addAllMessages(
        ScriptedBroker.leased("t", Duration.ofHours(1), ids).getMessagesList());
    willAnswer("Receive", answer.build());
    return quick.receive("orders", ids.length, Duration.ZERO);
  }

  @Test
  void aWholeFrameThatWasSettledBeforeTheRepeatIsSuccess() throws Exception {
    List<ConsumeMessage> frame = receive("a", "b");
    AtomicInteger settlements =
        loseFirst(
            "SettleGrants",
            request -> {
              SettleGrantsResponse.Builder answer = SettleGrantsResponse.newBuilder();
              ((SettleGrantsRequest) request)
                  .getSettlementsList()
                  .forEach(
                      grant ->
                          answer
                              .addResultsBuilder()
                              .getErrorBuilder()
                              .setReason(ErrorReason.ERROR_REASON_LEASE_EXPIRED));
              return answer.build();
            });
    broker.respond("AckBatch", acks(ErrorReason.ERROR_REASON_MESSAGE_NOT_FOUND));
    for (SettleResult result : quick.ackMany(frame)) {
      assertNull(result.error());
    }
    assertEquals(2, settlements.get());
    // This time the first answer is the truth.
    for (SettleResult result : quick.ackMany(frame)) {
      assertInstanceOf(MessageNotFoundException.class, result.error());
    }
  }
}

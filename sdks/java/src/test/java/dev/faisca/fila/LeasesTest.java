// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.ErrorReason;
import dev.faisca.fila.internal.v1.ExtendLeaseRequest;
import dev.faisca.fila.internal.v1.ExtendLeaseResponse;
import dev.faisca.fila.internal.v1.GrantExtension;
import dev.faisca.fila.internal.v1.GrantSettlement;
import dev.faisca.fila.internal.v1.LeaseExtension;
import dev.faisca.fila.internal.v1.SettleGrantsRequest;
import dev.faisca.fila.internal.v1.SettleGrantsResponse;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** What waits in a consumer is kept; what was lost, or was not kept, is handed out to nobody. */
class LeasesTest extends BrokerTest {
  // Long enough for a busy machine to extend it in time, and half of it is no long wait.
  private static final Duration LEASE = Duration.ofSeconds(4);
  private static final Duration SHORT = Duration.ofMillis(200);

  private List<GrantSettlement> extensions() {
    return broker.requests("SettleGrants", SettleGrantsRequest.class).stream()
        .flatMap(request -> request.getSettlementsList().stream())
        .toList();
  }

  private static String first(Consumer consumer) throws FilaException {
    return consumer.poll(PATIENCE).orElseThrow().id();
  }

  @Test
  void framesOfWhichSomethingIsHeldAreExtendedForAsLongAgain() throws Exception {
    broker.deliver(
        ScriptedBroker.leased("t1", LEASE, "a", "b"), ScriptedBroker.leased("t2", LEASE, "c"));
    try (Consumer consumer = client.consume("orders")) {
      assertEquals("a", first(consumer));
      eventually(() -> extensions().size() >= 4);
      GrantSettlement.Builder expected =
          GrantSettlement.newBuilder()
              .setQueue("orders")
              .setExtend(GrantExtension.newBuilder().setExtendMs(LEASE.toMillis()));
      assertEquals(
          List.of(
              expected.setLeaseToken("t1").build(), expected.setLeaseToken("t2").build()),
          extensions().subList(0, 2).stream()
              .sorted((one, other) -> one.getLeaseToken().compareTo(other.getLeaseToken()))
              .toList());
      assertEquals("b", first(consumer));
      assertEquals("c", first(consumer));
      assertEquals(0, client.shared().leases.keptCount());
    }
  }

  @Test
  void whatIsDueAtAMomentTravelsInOneRequest() throws Exception {
    CountDownLatch answer = new CountDownLatch(1);
    broker.respond(
        "SettleGrants",
        request -> {
          await(answer);
          return ScriptedBroker.settled(request);
        });
    Leases leases = client.shared().leases;
    long now = System.nanoTime();
    for (String token : List.of("t1", "t2", "t3")) {
      leases.keep(new Lease(ScriptedBroker.leased(token, LEASE, token + "-m"), client, now));
    }
    eventually(() -> !broker.calls("SettleGrants").isEmpty());
    assertEquals(3, extensions().size());
    assertEquals(1, broker.calls("SettleGrants").size());
    answer.countDown();
  }

  @Test
  void aConsumerWithoutExtensionsHandsNothingOutThatHasEnded() throws Exception {
    broker.deliver(ScriptedBroker.leased("t1", SHORT, "a", "b", "c"));
    ConsumeOptions options = ConsumeOptions.DEFAULT.withExtendLeases(false);
    try (Logged logged = new Logged();
        Consumer consumer = client.consume("orders", options)) {
      consumer.poll(PATIENCE);
      Thread.sleep(SHORT.toMillis());
      assertEquals(Optional.empty(), consumer.poll(Duration.ZERO));
      assertTrue(logged.has("whose leases had ended"), () -> logged.lines().toString());
    }
    assertEquals(List.of(), extensions());
    // Others have them by now, so there is nothing to give back.
    assertEquals(0, broker.calls("NackBatch").size());
  }

  @Test
  void aFrameThatTheBrokerHasTakenAwayIsDropped() throws Exception {
    broker.deliver(
        ScriptedBroker.leased("lost", LEASE, "a", "b"),
        ScriptedBroker.leased("kept", Duration.ofHours(1), "c"));
    broker.respond(
        "SettleGrants",
        request -> {
          SettleGrantsResponse.Builder answer = SettleGrantsResponse.newBuilder();
          answer
              .addResultsBuilder()
              .getErrorBuilder()
              .setReason(ErrorReason.ERROR_REASON_LEASE_EXPIRED);
          return answer.build();
        });
    try (Consumer consumer = client.consume("orders")) {
      assertEquals("a", first(consumer));
      // Before, one may be kept because the other has not arrived.
      eventually(() -> !extensions().isEmpty() && client.shared().leases.keptCount() == 1);
      assertEquals("c", first(consumer));
    }
    assertEquals(1, extensions().size());
  }

  @Test
  void anExtensionThatFailsForTheMomentIsTriedAgain() throws Exception {
    broker.deliver(ScriptedBroker.leased("t1", LEASE, "a", "b"));
    AtomicInteger attempts = new AtomicInteger();
    broker.script(
        "SettleGrants",
        (request, observer) -> {
          if (attempts.incrementAndGet() <= 2) {
            observer.onError(ScriptedBroker.refusal(Status.Code.UNAVAILABLE, "away", "OVERLOADED"));
          } else {
            observer.onNext(ScriptedBroker.settled(request));
            observer.onCompleted();
          }
        });
    try (Consumer consumer = client.consume("orders")) {
      assertEquals("a", first(consumer));
      eventually(() -> attempts.get() >= 4);
      assertEquals("b", first(consumer));
    }
  }

  @Test
  void aBrokerWithoutGrantsIsAskedForEachMessageThatIsHeld() throws Exception {
    broker.deliver(ScriptedBroker.leased("t1", LEASE, "a", "b", "c"));
    broker.refuse("SettleGrants", Status.Code.UNIMPLEMENTED, "no such call", null);
    broker.withoutPipelines();
    broker.respond("ExtendLease", LeasesTest::allButC);
    try (Consumer consumer = client.consume("orders")) {
      assertEquals("a", first(consumer));
      eventually(() -> broker.calls("ExtendLease").size() >= 2);
      List<LeaseExtension> asked =
          broker.requests("ExtendLease", ExtendLeaseRequest.class).get(0).getExtensionsList();
      assertEquals(List.of("b", "c"), asked.stream().map(LeaseExtension::getMessageId).toList());
      assertEquals(LEASE.toMillis(), asked.get(0).getExtendMs());
      assertEquals("b", first(consumer));
      // The broker gave c to somebody else.
      assertEquals(Optional.empty(), consumer.poll(Duration.ZERO));
    }
    assertEquals(1, broker.calls("SettleGrants").size());
  }

  private static Object allButC(Object request) {
    ExtendLeaseResponse.Builder answer = ExtendLeaseResponse.newBuilder();
    for (LeaseExtension extension : ((ExtendLeaseRequest) request).getExtensionsList()) {
      var result = answer.addResultsBuilder();
      if (extension.getMessageId().equals("c")) {
        result.getErrorBuilder().setReason(ErrorReason.ERROR_REASON_LEASE_EXPIRED);
      }
    }
    return answer.build();
  }

  @Test
  void whatWasReadBeforeTheStreamWasLostIsKeptAndHandedOut() throws Exception {
    broker.script(
        "Consume",
        (request, observer) -> {
          int number = broker.calls("Consume").size();
          observer.onNext(ScriptedBroker.leased("t" + number, LEASE, number + "a", number + "b"));
          if (number == 1) {
            observer.onError(ScriptedBroker.refusal(Status.Code.UNAVAILABLE, "bye", null));
          }
        });
    FilaClient quick = connect(builder().backoff(QUICK));
    try (Consumer consumer = quick.consume("orders")) {
      assertEquals("1a", first(consumer));
      eventually(() -> extensions().stream().anyMatch(e -> e.getLeaseToken().equals("t1")));
      assertEquals(List.of("1b", "2a"), List.of(first(consumer), first(consumer)));
    }
  }

  @Test
  void aClosedConsumerKeepsNothing() throws Exception {
    broker.deliver(ScriptedBroker.leased("t1", LEASE, "a", "b"));
    Consumer consumer = client.consume("orders");
    assertEquals("a", first(consumer));
    assertEquals(1, client.shared().leases.keptCount());
    consumer.close();
    assertEquals(0, client.shared().leases.keptCount());
    assertFalse(broker.calls("NackBatch").isEmpty());
  }
}

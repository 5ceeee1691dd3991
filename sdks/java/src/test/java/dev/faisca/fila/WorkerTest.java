// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.ConsumeRequest;
import dev.faisca.fila.internal.v1.NackRequest;
import dev.faisca.fila.internal.v1.SettleGrantsRequest;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** A worker handles messages side by side, and settles them by what its handlers say. */
@SuppressWarnings("try")
class WorkerTest extends WorkerCase {
  private static final Duration LEASE = Duration.ofSeconds(4);
  private static final Duration HOUR = Duration.ofHours(1);
  // Even on a busy machine a handler that just returns does so within this time.
  private static final Duration HANDLER_TIMEOUT = Duration.ofSeconds(3);

  /** Lets one message be handled, and gives the nack that comes of it. */
  private NackRequest nackOf(Handler<ConsumeMessage> handler) throws Exception {
    broker.deliver(ScriptedBroker.frame("m"));
    try (Worker worker = worker(handler).build().start()) {
      eventually(() -> !events.isEmpty());
    }
    assertEquals(1, nacks().size());
    return nacks().get(0);
  }

  // --- Options ----------------------------------------------------------------------------------

  private ConsumeRequest asked(WorkerBuilder<?> builder) throws Exception {
    broker.deliver();
    int before = broker.calls("Consume").size();
    try (Worker worker = builder.signals(false).build().start()) {
      eventually(() -> broker.calls("Consume").size() > before);
    }
    return (ConsumeRequest) broker.calls("Consume").get(before).request();
  }

  @Test
  void prefetchKeepsEveryHandlerBusy() throws Exception {
    Handler<ConsumeMessage> handler = message -> {};
    ConsumeRequest.Builder expected = ConsumeRequest.newBuilder().setQueue("orders");
    assertEquals(
        expected.setMaxInFlight(20).setMaxBatch(32).build(),
        asked(client.worker("orders", handler)));
    assertEquals(
        expected.setMaxInFlight(4).build(),
        asked(client.worker("orders", handler).concurrency(4).prefetch(3)));
    assertEquals(
        expected.setMaxInFlight(7).setVisibilityTimeoutMs(1500).build(),
        asked(
            client
                .worker("orders", handler)
                .concurrency(4)
                .prefetch(7)
                .visibilityTimeout(Duration.ofMillis(1500))));
    assertEquals(
        ConsumeRequest.newBuilder()
            .setQueue("orders")
            .setMaxInFlight(400)
            .setMaxBatch(100)
            .build(),
        asked(client.batchWorker("orders", 100, messages -> {}).concurrency(2)));
  }

  @Test
  void optionsThatCannotBeAreNamed() {
    WorkerBuilder<ConsumeMessage> builder = worker(message -> {});
    for (var wrong :
        List.<org.junit.jupiter.api.function.Executable>of(
            () -> builder.concurrency(0),
            () -> builder.prefetch(-1),
            () -> builder.handlerTimeout(Duration.ZERO),
            () -> builder.grace(Duration.ofSeconds(-1)),
            () -> client.batchWorker("orders", 0, messages -> {}),
            () -> new Backpressure(Duration.ofSeconds(-1)),
            () -> new Backpressure(Duration.ZERO, "\ud800"))) {
      assertThrows(IllegalArgumentException.class, wrong);
    }
  }

  // --- Outcomes ---------------------------------------------------------------------------------

  @Test
  void aHandlerThatReturnsAcks() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"), ScriptedBroker.frame("c"));
    try (Worker worker = worker(message -> {}).build().start()) {
      eventually(() -> events.size() == 3);
    }
    assertEquals(List.of("a", "b", "c"), acks());
    assertEquals(List.of("ACKED a", "ACKED b", "ACKED c"), kinds().stream().sorted().toList());
    assertEquals(List.of(), nacks());
  }

  @Test
  void whatAHandlerSettledItselfIsLeftAlone() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b", "c", "d"));
    CountDownLatch handled = new CountDownLatch(4);
    Handler<ConsumeMessage> handler =
        message -> {
          switch (message.id()) {
            case "a" -> message.ack();
            case "b" -> message.nack("no");
            case "c" -> client.ackMany(List.of(message));
            default -> client.nackMany(List.of(message), "no");
          }
          handled.countDown();
        };
    try (Worker worker = worker(handler).build().start()) {
      await(handled);
    }
    assertEquals(List.of("a", "c"), acks());
    assertEquals(2, nacks().size());
    assertEquals(List.of(), events);
  }

  @Test
  void aFailureIsANackInTheLanguagesWords() throws Exception {
    NackRequest nack =
        nackOf(
            message -> {
              throw new java.io.IOException("boom \ud800");
            });
    assertEquals("java.io.IOException: boom \ufffd", nack.getError());
    assertFalse(nack.hasRetryAfterMs());
    assertFalse(nack.getDeadLetter());
    assertEquals(List.of("NACKED m"), kinds());
    assertInstanceOf(java.io.IOException.class, events.get(0).error());
  }

  @Test
  void aLongFailureIsCutWhereACharacterEnds() throws Exception {
    NackRequest nack =
        nackOf(
            message -> {
              throw new IllegalStateException("\u20ac".repeat(5000));
            });
    int bytes = nack.getErrorBytes().size();
    assertTrue(bytes <= 4096 && bytes > 4090, () -> bytes + " B");
    assertTrue(nack.getError().endsWith("\u20ac"));
  }

  @Test
  void anErrorIsANackAndALineOfTheLogAndTheWorkerGoesOn() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"));
    Handler<ConsumeMessage> handler =
        message -> {
          if (message.id().equals("a")) {
            throw new NoClassDefFoundError("gone");
          }
        };
    try (Logged logged = new Logged();
        Worker worker = worker(handler).concurrency(1).build().start()) {
      eventually(() -> events.size() == 2);
      assertTrue(logged.has("SEVERE a handler of queue \"orders\" failed"));
    }
    assertEquals("java.lang.NoClassDefFoundError: gone", nacks().get(0).getError());
    assertEquals(List.of("b"), acks());
  }

  @Test
  void backpressurePutsOff() throws Exception {
    NackRequest nack =
        nackOf(
            message -> {
              throw new Backpressure(Duration.ofNanos(1_500_000), "smtp", "not now");
            });
    assertEquals(2, nack.getRetryAfterMs());
    assertEquals(List.of("smtp", "not now"), List.of(nack.getThrottleKey(), nack.getError()));
    assertEquals(List.of("PUT_OFF m"), kinds());
  }

  @Test
  void aDeadLetterIsNotTriedAgain() throws Exception {
    NackRequest nack =
        nackOf(
            message -> {
              throw new DeadLetter("hopeless");
            });
    assertTrue(nack.getDeadLetter());
    assertEquals("hopeless", nack.getError());
    assertEquals(List.of("DEAD_LETTERED m"), kinds());
  }

  @Test
  void aSettlementThatFailsIsAnEventAndALineAndNoMore() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    broker.refuse("AckBatch", Status.Code.INTERNAL, "broken", null);
    try (Logged logged = new Logged();
        Worker worker = worker(message -> {}).build().start()) {
      eventually(() -> events.size() == 1);
      assertTrue(logged.has("WARNING message a of queue \"orders\" could not be settled"));
    }
    assertEquals(List.of("SETTLE_FAILED a"), kinds());
    assertInstanceOf(InternalException.class, events.get(0).error());
  }

  @Test
  void whatAListenerThrowsChangesNothing() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"));
    AtomicInteger told = new AtomicInteger();
    WorkerBuilder<ConsumeMessage> builder =
        worker(message -> {})
            .onEvent(
                event -> {
                  told.incrementAndGet();
                  throw new AssertionError("a listener's own");
                });
    try (Worker worker = builder.build().start()) {
      eventually(() -> told.get() == 2);
    }
    assertEquals(List.of("a", "b"), acks());
  }

  // --- Handlers ---------------------------------------------------------------------------------

  @Test
  void noMoreHandlersRunThanMay() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b", "c", "d", "e", "f", "g", "h"));
    AtomicInteger running = new AtomicInteger();
    AtomicInteger most = new AtomicInteger();
    CountDownLatch three = new CountDownLatch(3);
    Handler<ConsumeMessage> handler =
        message -> {
          most.accumulateAndGet(running.incrementAndGet(), Math::max);
          three.countDown();
          await(three);
          running.decrementAndGet();
        };
    try (Worker worker = worker(handler).concurrency(3).build().start()) {
      eventually(() -> events.size() == 8);
    }
    assertEquals(3, most.get());
  }

  @Test
  void aBatchIsWhatIsThereAndIsAckedByOneCall() throws Exception {
    broker.deliver(ScriptedBroker.leased("t", HOUR, "a", "b", "c"), ScriptedBroker.frame("d"));
    List<Integer> sizes = new CopyOnWriteArrayList<>();
    CountDownLatch open = new CountDownLatch(1);
    Worker worker =
        client
            .batchWorker(
                "orders",
                3,
                messages -> {
                  sizes.add(messages.size());
                  await(open);
                })
            .concurrency(1)
            .signals(false)
            .onEvent(events::add)
            .build();
    try (worker) {
      worker.start();
      eventually(() -> sizes.size() == 1);
      open.countDown();
      eventually(() -> events.size() == 4);
    }
    assertEquals(4, sizes.stream().mapToInt(Integer::intValue).sum());
    long calls = broker.calls("SettleGrants").size() + broker.calls("AckBatch").size();
    assertEquals(sizes.size(), calls);
  }

  @Test
  void theOutcomeOfABatchIsThatOfAllThatItDidNotSettle() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b", "c"));
    Worker worker =
        client
            .batchWorker(
                "orders",
                10,
                messages -> {
                  messages.get(0).ack();
                  throw new DeadLetter("hopeless");
                })
            .signals(false)
            .onEvent(events::add)
            .build();
    try (worker) {
      worker.start();
      eventually(() -> events.size() == 2);
    }
    assertEquals(List.of("a"), acks());
    assertEquals(List.of("b", "c"), nacks().stream().map(NackRequest::getMessageId).toList());
    assertTrue(nacks().stream().allMatch(NackRequest::getDeadLetter));
  }

  @Test
  void middlewareRunsAroundTheHandlerOutermostFirst() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"));
    List<String> calls = new CopyOnWriteArrayList<>();
    Middleware<ConsumeMessage> outer =
        (message, next) -> {
          calls.add("outer");
          next.handle(message);
          calls.add("outer again");
        };
    Middleware<ConsumeMessage> inner =
        (message, next) -> {
          calls.add("inner");
          if (message.id().equals("b")) {
            throw new DeadLetter("not this one");
          }
          next.handle(message);
        };
    WorkerBuilder<ConsumeMessage> builder =
        worker(message -> calls.add("handler " + message.id()))
            .concurrency(1)
            .middleware(outer)
            .middleware(inner);
    try (Worker worker = builder.build().start()) {
      eventually(() -> events.size() == 2);
    }
    assertEquals(
        List.of("outer", "inner", "handler a", "outer again", "outer", "inner"), calls);
    assertEquals(List.of("ACKED a", "DEAD_LETTERED b"), kinds().stream().sorted().toList());
  }

  @Test
  void leasesAreExtendedWhileHandlersRunAndNotAfterwards() throws Exception {
    broker.deliver(ScriptedBroker.leased("t", LEASE, "a", "b"));
    CountDownLatch open = new CountDownLatch(1);
    try (Worker worker = worker(message -> await(open)).build().start()) {
      eventually(
          () ->
              broker.requests("SettleGrants", SettleGrantsRequest.class).stream()
                      .filter(request -> request.getSettlements(0).hasExtend())
                      .count()
                  >= 2);
      open.countDown();
      eventually(() -> events.size() == 2);
      assertEquals(0, client.shared().leases.keptCount());
    }
  }

  @Test
  void aHandlerThatIsTooSlowIsInterruptedAndHasFailed() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"));
    CountDownLatch interrupted = new CountDownLatch(1);
    List<Boolean> flags = new CopyOnWriteArrayList<>();
    Handler<ConsumeMessage> handler =
        message -> {
          flags.add(Thread.currentThread().isInterrupted());
          if (message.id().equals("a")) {
            try {
              sleep();
            } catch (InterruptedException expected) {
              interrupted.countDown();
              throw expected;
            }
          }
        };
    WorkerBuilder<ConsumeMessage> builder =
        worker(handler).concurrency(1).handlerTimeout(HANDLER_TIMEOUT);
    try (Worker worker = builder.build().start()) {
      await(interrupted);
      eventually(() -> events.size() == 3);
    }
    assertEquals("handler timed out after 3 s", nacks().get(0).getError());
    assertEquals(1, nacks().size());
    // The thread goes on, and its next handler is not interrupted.
    assertEquals(List.of(false, false), flags);
    assertEquals(
        List.of("ACKED b", "NACKED a", "TIMED_OUT a"), kinds().stream().sorted().toList());
  }

  @Test
  void aHandlerThatCannotBeInterruptedKeepsItsPlaceAndIsIgnored() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"));
    CountDownLatch open = new CountDownLatch(1);
    AtomicInteger started = new AtomicInteger();
    Handler<ConsumeMessage> handler =
        message -> {
          started.incrementAndGet();
          while (message.id().equals("a") && open.getCount() > 0) {
            Thread.onSpinWait();
          }
        };
    WorkerBuilder<ConsumeMessage> builder =
        worker(handler).concurrency(1).handlerTimeout(HANDLER_TIMEOUT);
    try (Worker worker = builder.build().start()) {
      eventually(() -> kinds().contains("NACKED a"));
      assertEquals(1, started.get());
      open.countDown();
      eventually(() -> kinds().contains("ACKED b"));
    }
    assertEquals(List.of("b"), acks());
  }

  @Test
  void twoWorkersOfAClientDoNotMeet() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"));
    try (Worker one = worker(message -> {}).build().start();
        Worker other = worker(message -> {}).build().start()) {
      eventually(() -> events.size() == 4);
    }
    assertEquals(List.of("a", "a", "b", "b"), acks());
  }
}

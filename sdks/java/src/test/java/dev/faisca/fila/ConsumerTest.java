// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.ScriptedBroker.Script;
import dev.faisca.fila.internal.v1.ConsumeRequest;
import dev.faisca.fila.internal.v1.ConsumeResponse;
import dev.faisca.fila.internal.v1.NackBatchRequest;
import dev.faisca.fila.internal.v1.NackRequest;
import io.grpc.Status;
import io.grpc.stub.ServerCallStreamObserver;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A consumer hands out what it was sent, outlives its connection, and ends when it is told to. */
class ConsumerTest extends BrokerTest {
  /** Messages that the client gave back, without an attempt being counted. */
  private List<String> released() {
    List<NackRequest> nacks =
        broker.requests("NackBatch", NackBatchRequest.class).stream()
            .flatMap(request -> request.getNacksList().stream())
            .toList();
    for (NackRequest nack : nacks) {
      assertTrue(nack.hasRetryAfterMs());
      assertEquals(0, nack.getRetryAfterMs());
      assertEquals("token-of-" + nack.getMessageId(), nack.getLeaseToken());
    }
    return nacks.stream().map(NackRequest::getMessageId).toList();
  }

  private static List<String> rest(Consumer consumer) {
    return StreamSupport.stream(consumer.spliterator(), false).map(Message::id).toList();
  }

  private static <T> T get(Future<T> future) throws Exception {
    return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
  }

  @Test
  void messagesArriveInOrderAcrossFrames() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"), ScriptedBroker.frame("c"));
    ConsumeOptions options = new ConsumeOptions(7, 3, Duration.ofMillis(9), true);
    try (Consumer consumer = client.consume("orders", options)) {
      Iterator<ConsumeMessage> messages = consumer.iterator();
      assertEquals(
          List.of("a", "b", "c"),
          List.of(messages.next().id(), messages.next().id(), messages.next().id()));
    }
    assertEquals(
        ConsumeRequest.newBuilder()
            .setQueue("orders")
            .setMaxInFlight(7)
            .setMaxBatch(3)
            .setVisibilityTimeoutMs(9)
            .build(),
        broker.calls("Consume").get(0).request());
  }

  @Test
  void byDefaultMessagesComeInFramesAndPrefetchIsBounded() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    try (Consumer consumer = client.consume("orders")) {
      consumer.iterator().next();
    }
    assertEquals(
        ConsumeRequest.newBuilder().setQueue("orders").setMaxInFlight(64).setMaxBatch(32).build(),
        broker.calls("Consume").get(0).request());
  }

  @Test
  void framesAreReadAsTheyComeAndNotWhenSomebodyAsks() throws Exception {
    // Many large ones, so that no buffer on the way can hold them all.
    int frames = 40;
    byte[] large = new byte[1 << 20];
    AtomicInteger sent = new AtomicInteger();
    broker.script(
        "Consume",
        (request, observer) -> {
          ServerCallStreamObserver<Object> call = (ServerCallStreamObserver<Object>) observer;
          call.setOnReadyHandler(
              () -> {
                while (call.isReady() && sent.get() < frames) {
                  var message = ScriptedBroker.message("m" + sent.getAndIncrement(), large);
                  call.onNext(ConsumeResponse.newBuilder().addMessages(message).build());
                }
              });
        });
    try (Consumer consumer = client.consume("orders")) {
      assertEquals("m0", consumer.poll(PATIENCE).orElseThrow().id());
      eventually(() -> sent.get() == frames);
      for (int number = 1; number < frames; number++) {
        assertEquals("m" + number, consumer.poll(PATIENCE).orElseThrow().id());
      }
    }
  }

  @Test
  void threadsShareAConsumer() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b", "c", "d"), ScriptedBroker.frame("e", "f"));
    List<Future<List<String>>> readers = new ArrayList<>();
    Consumer consumer = client.consume("orders");
    CountDownLatch handedOut = new CountDownLatch(6);
    for (int number = 0; number < 3; number++) {
      readers.add(
          threads.submit(
              () -> {
                List<String> found = new ArrayList<>();
                for (ConsumeMessage message : consumer) {
                  found.add(message.id());
                  handedOut.countDown();
                }
                return found;
              }));
    }
    await(handedOut);
    consumer.close();
    List<String> all = new ArrayList<>();
    for (Future<List<String>> reader : readers) {
      all.addAll(get(reader));
    }
    assertEquals(List.of("a", "b", "c", "d", "e", "f"), all.stream().sorted().toList());
  }

  @Test
  void pollWaitsNoLongerThanItMayAndLosesNothing() throws Exception {
    CountDownLatch send = new CountDownLatch(1);
    broker.script(
        "Consume",
        (request, observer) -> {
          observer.onNext(ScriptedBroker.frame("a"));
          await(send);
          observer.onNext(ScriptedBroker.frame("b"));
        });
    try (Consumer consumer = client.consume("orders")) {
      assertEquals("a", consumer.poll(PATIENCE).orElseThrow().id());
      assertEquals(Optional.empty(), consumer.poll(Duration.ZERO));
      assertEquals(Optional.empty(), consumer.poll(Duration.ofMillis(50)));
      assertFalse(consumer.isClosed());
      Thread.currentThread().interrupt();
      assertThrows(CancelledException.class, () -> consumer.poll(PATIENCE));
      assertTrue(Thread.interrupted());
      send.countDown();
      assertEquals("b", consumer.poll(PATIENCE).orElseThrow().id());
    }
    assertEquals(1, broker.calls("Consume").size());
  }

  @Test
  void anUnknownQueueIsReportedByTheFirstWishAndOnlyOnce() throws Exception {
    broker.refuse("Consume", Status.Code.NOT_FOUND, "no queue", "QUEUE_NOT_FOUND");
    Consumer consumer = client.consume("nowhere");
    FilaException error = assertThrows(QueueNotFoundException.class, () -> consumer.poll(PATIENCE));
    assertEquals("nowhere", error.queue());
    assertEquals(List.of(), rest(consumer));
    assertThrows(NoSuchElementException.class, () -> consumer.iterator().next());
    assertEquals(1, broker.seen.size());
  }

  @Test
  void anErrorInTheMiddleComesAfterTheMessagesBeforeIt() throws Exception {
    broker.script(
        "Consume",
        (request, observer) -> {
          observer.onNext(ScriptedBroker.frame("a", "b"));
          observer.onError(
              ScriptedBroker.refusal(
                  Status.Code.PERMISSION_DENIED, "revoked", "PERMISSION_DENIED"));
        });
    Iterator<ConsumeMessage> messages = client.consume("orders").iterator();
    assertEquals(List.of("a", "b"), List.of(messages.next().id(), messages.next().id()));
    UncheckedFilaException error = assertThrows(UncheckedFilaException.class, messages::next);
    assertInstanceOf(PermissionDeniedException.class, error.getCause());
    assertFalse(messages.hasNext());
  }

  // --- Reconnect --------------------------------------------------------------------------------

  @ParameterizedTest
  @ValueSource(strings = {"clean", "UNAVAILABLE", "SHUTTING_DOWN"})
  void aStreamThatEndsIsOpenedAgain(String ending) throws Exception {
    Script script =
        (request, observer) -> {
          int number = broker.calls("Consume").size();
          observer.onNext(ScriptedBroker.frame("m-" + number));
          if (number == 3) {
            return;
          }
          if (ending.equals("clean")) {
            observer.onCompleted();
          } else {
            String reason = ending.equals("SHUTTING_DOWN") ? ending : null;
            observer.onError(ScriptedBroker.refusal(Status.Code.UNAVAILABLE, "bye", reason));
          }
        };
    broker.script("Consume", script);
    FilaClient quick = connect(builder().backoff(QUICK));
    try (Consumer consumer = quick.consume("orders")) {
      Iterator<ConsumeMessage> messages = consumer.iterator();
      assertEquals(
          List.of("m-1", "m-2", "m-3"),
          List.of(messages.next().id(), messages.next().id(), messages.next().id()));
    }
  }

  @Test
  void aConsumerSurvivesABrokerRestart() throws Exception {
    int port = freePort();
    ScriptedBroker first =
        startAt(port, starting -> starting.deliver(ScriptedBroker.frame("before")));
    FilaClient quick = connect(builder().target(first.target()).backoff(QUICK));
    Consumer consumer = quick.consume("orders");
    Iterator<ConsumeMessage> messages = consumer.iterator();
    assertEquals("before", messages.next().id());
    Future<String> after = threads.submit(() -> messages.next().id());
    first.close();
    assertThrows(UnavailableException.class, () -> quick.enqueue(message("x")));
    startAt(port, starting -> starting.deliver(ScriptedBroker.frame("after")));
    assertEquals("after", get(after));
  }

  @Test
  void aConsumerMayBeOpenedBeforeTheBroker() throws Exception {
    int port = freePort();
    FilaClient quick = connect(builder().target("127.0.0.1:" + port).backoff(QUICK));
    Consumer consumer = quick.consume("orders");
    Future<String> first = threads.submit(() -> consumer.iterator().next().id());
    assertThrows(UnavailableException.class, () -> quick.enqueue(message("x")));
    startAt(port, starting -> starting.deliver(ScriptedBroker.frame("a")));
    assertEquals("a", get(first));
  }

  @Test
  void attemptsAreNeverHot() throws Exception {
    broker.refuse("Consume", Status.Code.UNAVAILABLE, "away", null);
    FilaClient quick = connect(builder().backoff(QUICK));
    Consumer consumer = quick.consume("orders");
    long started = System.nanoTime();
    do {
      assertEquals(Optional.empty(), consumer.poll(Duration.ofSeconds(1)));
    } while (broker.calls("Consume").size() < 2
        && System.nanoTime() - started < PATIENCE.toNanos());
    // Waits are 0.05 s on average: some 20 in a second, never thousands.
    int attempts = broker.calls("Consume").size();
    double seconds = (System.nanoTime() - started) / 1e9;
    assertTrue(
        attempts >= 2 && attempts < 300 * seconds, () -> attempts + " attempts in " + seconds);
  }

  @Test
  void theLogSaysOnceThatAStreamWasLostAndOnceThatItIsThereAgain() throws Exception {
    CountDownLatch isBack = new CountDownLatch(1);
    broker.script(
        "Consume",
        (request, observer) -> {
          if (isBack.getCount() > 0) {
            observer.onError(ScriptedBroker.refusal(Status.Code.UNAVAILABLE, "away", null));
          } else {
            observer.onNext(ScriptedBroker.frame("a"));
          }
        });
    FilaClient quick = connect(builder().backoff(QUICK));
    try (Logged logged = new Logged();
        Consumer consumer = quick.consume("orders")) {
      Future<Optional<ConsumeMessage>> first = threads.submit(() -> consumer.poll(PATIENCE));
      eventually(() -> broker.calls("Consume").size() >= 3);
      isBack.countDown();
      assertEquals("a", get(first).orElseThrow().id());
      assertEquals(
          List.of(
              "WARNING consume stream of queue \"orders\" was lost, reconnecting: away",
              "INFO consume stream of queue \"orders\" is there again"),
          logged.lines());
    }
  }

  // --- Close ------------------------------------------------------------------------------------

  @Test
  void closingEarlyEndsTheStreamAndGivesBackWhatWasNotHandedOut() throws Exception {
    CountDownLatch left =
        broker.deliver(ScriptedBroker.frame("a", "b", "c"), ScriptedBroker.frame("d"));
    Consumer opened;
    try (Consumer consumer = client.consume("orders")) {
      opened = consumer;
      for (ConsumeMessage message : consumer) {
        assertEquals("a", message.id());
        break;
      }
    }
    await(left);
    // Nobody has seen the others, so they need not wait for their leases to end.
    assertEquals(List.of("b", "c"), released().subList(0, 2));
    assertEquals(List.of(), rest(opened));
    assertEquals(Optional.empty(), opened.poll(PATIENCE));
    assertTrue(opened.isClosed());
    opened.close();
    assertEquals(1, broker.calls("NackBatch").size());
  }

  @Test
  void framesThatWereSentButNotReadAreGivenBackToo() throws Exception {
    CountDownLatch sent = new CountDownLatch(1);
    broker.script(
        "Consume",
        (request, observer) -> {
          observer.onNext(ScriptedBroker.frame("a"));
          observer.onNext(ScriptedBroker.frame("b", "c"));
          sent.countDown();
        });
    Consumer consumer = client.consume("orders");
    assertEquals("a", consumer.poll(PATIENCE).orElseThrow().id());
    await(sent);
    // A round trip later the second frame has arrived, in whatever buffer.
    client.enqueue(message("x"));
    consumer.close();
    assertEquals(List.of("b", "c"), released());
  }

  @Test
  void messagesThatCannotBeGivenBackDoNotHoldUpTheClose() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"));
    broker.refuse("NackBatch", Status.Code.INTERNAL, "broken", null);
    try (Consumer consumer = client.consume("orders")) {
      consumer.iterator().next();
    }
    assertEquals(List.of("b"), released());
    broker.deliver(ScriptedBroker.frame("a", "b"));
    broker.script("NackBatch", (request, observer) -> {});
    Consumer stuck = client.consume("orders");
    stuck.iterator().next();
    long started = System.nanoTime();
    stuck.close();
    assertTrue(System.nanoTime() - started < Duration.ofSeconds(15).toNanos());
  }

  @Test
  void closeFromAnotherThreadEndsABlockedIteration() throws Exception {
    CountDownLatch left = broker.deliver(ScriptedBroker.frame("a"));
    Consumer consumer = client.consume("orders");
    consumer.iterator().next();
    Future<List<String>> reader = threads.submit(() -> rest(consumer));
    Thread.sleep(50);
    consumer.close();
    assertEquals(List.of(), get(reader));
    await(left);
  }

  @Test
  void closeEndsAnIterationThatWaitsToReconnect() throws Exception {
    broker.refuse("Consume", Status.Code.UNAVAILABLE, "away", null);
    Duration longest = Duration.ofMinutes(10);
    FilaClient patient = connect(builder().backoff(new Backoff(longest, longest)));
    Consumer consumer = patient.consume("orders");
    Future<List<String>> reader = threads.submit(() -> rest(consumer));
    eventually(() -> broker.calls("Consume").size() == 1);
    consumer.close();
    assertEquals(List.of(), get(reader));
  }

  @Test
  void closingTheClientEndsItsConsumersWithoutAnError() throws Exception {
    broker.deliver();
    List<Future<List<String>>> readers = new ArrayList<>();
    for (String queue : List.of("orders", "invoices")) {
      Consumer consumer = client.consume(queue);
      readers.add(threads.submit(() -> rest(consumer)));
    }
    eventually(() -> broker.calls("Consume").size() == 2);
    client.close();
    for (Future<List<String>> reader : readers) {
      assertEquals(List.of(), get(reader));
    }
  }

  @Test
  void closingTheClientGivesMessagesBackFirst() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"));
    client.consume("orders").iterator().next();
    client.close();
    assertEquals(List.of("b"), released());
  }

  // --- Listeners --------------------------------------------------------------------------------

  @Test
  void aListenerGetsEveryMessageAndTheEnd() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"), ScriptedBroker.frame("c"));
    CountDownLatch ended = new CountDownLatch(1);
    List<String> found = new CopyOnWriteArrayList<>();
    Consumer consumer =
        client
            .consume("orders")
            .listen(
                new MessageListener() {
                  @Override
                  public void onMessage(ConsumeMessage message) throws FilaException {
                    found.add(message.id());
                    message.ack();
                  }

                  @Override
                  public void onEnd() {
                    ended.countDown();
                  }
                });
    eventually(() -> found.size() == 3);
    consumer.close();
    await(ended);
    assertEquals(List.of("a", "b", "c"), found);
  }

  @Test
  void whatAListenerThrowsIsWhatTheMessageIsNackedWith() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"));
    CountDownLatch second = new CountDownLatch(1);
    try (Consumer consumer = client.consume("orders")) {
      consumer.listen(
          message -> {
            if (message.id().equals("a")) {
              throw new IllegalStateException("boom");
            }
            second.countDown();
          });
      await(second);
      eventually(() -> !broker.calls("NackBatch").isEmpty());
    }
    NackRequest nack = broker.requests("NackBatch", NackBatchRequest.class).get(0).getNacks(0);
    assertEquals(List.of("a", "boom"), List.of(nack.getMessageId(), nack.getError()));
    assertFalse(nack.hasRetryAfterMs());
  }

  @Test
  void aListenersErrorIsANackAndTheNextMessageFollows() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b"));
    CountDownLatch second = new CountDownLatch(1);
    try (Consumer consumer = client.consume("orders")) {
      consumer.listen(
          message -> {
            if (message.id().equals("a")) {
              throw new StackOverflowError("deep \ud800 down");
            }
            second.countDown();
          });
      await(second);
      eventually(() -> !broker.calls("NackBatch").isEmpty());
    }
    NackRequest nack = broker.requests("NackBatch", NackBatchRequest.class).get(0).getNacks(0);
    assertEquals(List.of("a", "deep \ufffd down"), List.of(nack.getMessageId(), nack.getError()));
  }

  @Test
  void aListenerIsToldTheErrorThatEndedTheConsumer() throws Exception {
    broker.refuse("Consume", Status.Code.NOT_FOUND, "no queue", "QUEUE_NOT_FOUND");
    List<FilaException> found = new CopyOnWriteArrayList<>();
    client
        .consume("nowhere")
        .listen(
            new MessageListener() {
              @Override
              public void onMessage(ConsumeMessage message) {}

              @Override
              public void onError(FilaException error) {
                found.add(error);
              }
            });
    eventually(() -> found.size() == 1);
    assertInstanceOf(QueueNotFoundException.class, found.get(0));
    assertNull(found.get(0).messageId());
  }
}

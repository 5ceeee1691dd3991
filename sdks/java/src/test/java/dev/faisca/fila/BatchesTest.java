// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.ErrorReason;
import dev.faisca.fila.internal.v1.ExtendLeaseRequest;
import dev.faisca.fila.internal.v1.ExtendLeaseResponse;
import dev.faisca.fila.internal.v1.LeaseExtension;
import dev.faisca.fila.internal.v1.NackBatchRequest;
import dev.faisca.fila.internal.v1.NackRequest;
import dev.faisca.fila.internal.v1.ReceiveResponse;
import io.grpc.Status;
import java.time.Duration;
import java.time.Instant;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Messages in lists: iterated over, received without waiting, prolonged together. */
class BatchesTest extends BrokerTest {
  private static final Instant END = Instant.ofEpochSecond(2_000);

  private static List<String> ids(List<ConsumeMessage> messages) {
    return messages.stream().map(Message::id).toList();
  }

  @Test
  void aBatchIsWhatIsThereUpToItsSize() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b", "c"), ScriptedBroker.frame("d"));
    Iterator<List<ConsumeMessage>> batches;
    try (Consumer consumer = client.consume("orders")) {
      batches = consumer.batches(2).iterator();
      assertTrue(batches.hasNext());
      assertEquals(List.of("a", "b"), ids(batches.next()));
      // Nothing lingers: this may be one or two.
      List<ConsumeMessage> next = batches.next();
      assertEquals("c", next.get(0).id());
      if (next.size() == 1) {
        next = batches.next();
      }
      assertEquals("d", next.get(next.size() - 1).id());
    }
    assertFalse(batches.hasNext());
    assertEquals(0, broker.calls("NackBatch").size());
  }

  @Test
  void whatWasNotHandedOutInABatchIsGivenBack() throws Exception {
    broker.deliver(ScriptedBroker.frame("a", "b", "c"));
    try (Consumer consumer = client.consume("orders")) {
      assertEquals(List.of("a", "b"), ids(consumer.batches(2).iterator().next()));
    }
    NackBatchRequest given = (NackBatchRequest) sent("NackBatch");
    assertEquals(
        List.of("c"), given.getNacksList().stream().map(NackRequest::getMessageId).toList());
  }

  @Test
  void theErrorThatEndsAConsumerEndsItsBatches() throws Exception {
    broker.refuse("Consume", Status.Code.NOT_FOUND, "no queue", "QUEUE_NOT_FOUND");
    var batches = client.consume("nowhere").batches(5).iterator();
    UncheckedFilaException error = assertThrows(UncheckedFilaException.class, batches::hasNext);
    assertInstanceOf(QueueNotFoundException.class, error.getCause());
    assertFalse(batches.hasNext());
  }

  @Test
  void aBatchOfNothingIsRefused() throws Exception {
    Consumer consumer = client.consume("orders");
    assertThrows(IllegalArgumentException.class, () -> consumer.batches(0));
  }

  @Test
  void receivingNeedNotBeWaitedFor() throws Exception {
    Gate gate =
        new Gate(
            broker,
            "Receive",
            request ->
                ReceiveResponse.newBuilder()
                    .addMessages(ScriptedBroker.message("a", new byte[0]))
                    .build());
    CompletableFuture<List<ConsumeMessage>> answer =
        client.receiveAsync("orders", 1, Duration.ofMinutes(1), null);
    gate.awaitRequests(1);
    assertFalse(answer.isDone());
    gate.open();
    assertEquals(List.of("a"), ids(answer.get(PATIENCE.toSeconds(), TimeUnit.SECONDS)));
    client.close();
    ExecutionException closed =
        assertThrows(
            ExecutionException.class, () -> client.receiveAsync("orders", 1, null, null).get());
    assertInstanceOf(ClientClosedException.class, closed.getCause());
  }

  private static Object extended(Object request) {
    ExtendLeaseResponse.Builder answer = ExtendLeaseResponse.newBuilder();
    for (LeaseExtension extension : ((ExtendLeaseRequest) request).getExtensionsList()) {
      if (extension.getMessageId().equals("m1")) {
        answer
            .addResultsBuilder()
            .getErrorBuilder()
            .setReason(ErrorReason.ERROR_REASON_LEASE_EXPIRED)
            .setMessage("too late");
      } else {
        answer.addResultsBuilder().setLeaseExpiresAt(Wire.timestamp(END));
      }
    }
    return answer.build();
  }

  @Test
  void manyLeasesAreProlongedWithOneOutcomeEach() throws Exception {
    broker.respond("ExtendLease", BatchesTest::extended);
    int count = BatchRpc.ITEMS_MAX + 1;
    String[] ids =
        IntStream.range(0, count).mapToObj(number -> "m" + number).toArray(String[]::new);
    willAnswer(
        "Receive",
        ReceiveResponse.newBuilder()
            .addAllMessages(ScriptedBroker.frame(ids).getMessagesList())
            .build());
    List<ConsumeMessage> messages = client.receive("orders", count, Duration.ZERO);
    List<ExtendResult> results = client.extendMany(messages, Duration.ofNanos(1));
    assertEquals(List.of(ids), results.stream().map(ExtendResult::messageId).toList());
    assertEquals(END, results.get(0).orThrow());
    assertEquals(END, results.get(count - 1).leaseExpiresAt());
    assertNull(results.get(0).error());
    assertEquals("m1", results.get(1).error().messageId());
    assertThrows(LeaseExpiredException.class, results.get(1)::orThrow);
    assertEquals(END, messages.get(0).leaseExpiresAt());
    assertNull(messages.get(1).leaseExpiresAt());
    List<ExtendLeaseRequest> requests = broker.requests("ExtendLease", ExtendLeaseRequest.class);
    assertEquals(
        List.of(BatchRpc.ITEMS_MAX, 1),
        requests.stream().map(ExtendLeaseRequest::getExtensionsCount).toList());
    assertEquals(1, requests.get(0).getExtensions(0).getExtendMs());
    assertEquals("token-of-m0", requests.get(0).getExtensions(0).getLeaseToken());
  }

  @Test
  void aListenerThatFailsAtTheEndIsLoggedAndItsConsumerClosed() throws Exception {
    broker.refuse("Consume", Status.Code.NOT_FOUND, "no queue", "QUEUE_NOT_FOUND");
    try (Logged logged = new Logged()) {
      Consumer consumer =
          client
              .consume("nowhere")
              .listen(
                  new MessageListener() {
                    @Override
                    public void onMessage(ConsumeMessage message) {}

                    @Override
                    public void onError(FilaException error) {
                      throw new StackOverflowError("deep");
                    }
                  });
      eventually(
          () -> logged.has("SEVERE the thread of a listener has failed, its consumer is closed"));
      assertTrue(consumer.isClosed());
    }
  }
}

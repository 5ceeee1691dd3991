// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.ConsumeResponse;
import dev.faisca.fila.internal.v1.ReceiveResponse;
import io.grpc.Status;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What every call carries, how a client is set up, and what is left of it after close. */
class ConnectionTest extends BrokerTest {
  private static final String KEY = "fk_0123456789.secret~key";

  // --- Deadlines --------------------------------------------------------------------------------

  @Test
  void unaryCallsHaveADeadlineOfFiveSeconds() {
    assertEquals(Duration.ofSeconds(5), ClientOptions.DEFAULT.timeout());
  }

  @Test
  void theClientsDeadlineTravelsAndACallCanChooseItsOwn() throws Exception {
    broker.withoutPipelines();
    FilaClient slow = connect(builder().timeout(Duration.ofSeconds(400)));
    FilaClient slower = slow.withTimeout(Duration.ofSeconds(2000));
    slow.enqueue(message("x"));
    slow.ack("orders", "m", null);
    slow.enqueueMany(List.of(message("x")));
    slower.enqueue(message("x"));
    slower.ack("orders", "m", null);
    slower.enqueueMany(List.of(message("x")));
    for (int index = 0; index < 6; index++) {
      double left = broker.seen.get(index).secondsLeft();
      double chosen = index < 3 ? 400 : 2000;
      // A busy machine may take a while to get here; gRPC rounds by as much as a per cent.
      assertTrue(left > chosen - 100 && left < chosen * 1.02, () -> left + " of " + chosen);
    }
  }

  @Test
  void receiveGetsItsWaitOnTop() throws Exception {
    broker.respond("Receive", request -> ReceiveResponse.getDefaultInstance());
    FilaClient slow = connect(builder().timeout(Duration.ofSeconds(400)));
    assertEquals(List.of(), slow.receive("orders", 1, Duration.ofSeconds(1600)));
    double left = broker.seen.get(0).secondsLeft();
    assertTrue(left > 1900 && left < 2040, () -> left + " s");
  }

  @Test
  void aStreamHasNoDeadline() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    try (Consumer consumer = client.consume("orders")) {
      assertEquals("a", consumer.iterator().next().id());
    }
    assertNull(broker.calls("Consume").get(0).deadline());
  }

  @Test
  void aClientEnforcesTheDeadlineItself() {
    broker.script("DeleteQueue", (request, observer) -> {});
    broker.script("EnqueueBatch", (request, observer) -> {});
    FilaClient hasty = client.withTimeout(Duration.ofMillis(200));
    assertThrows(DeadlineExceededException.class, () -> hasty.deleteQueue("orders"));
    assertThrows(DeadlineExceededException.class, () -> hasty.enqueue(message("x")));
  }

  @Test
  void aDeadlineThatHasPassedIsExceededAndNothingIsSent() {
    for (Duration timeout : List.of(Duration.ZERO, Duration.ofSeconds(-1))) {
      FilaClient late = client.withTimeout(timeout);
      assertThrows(DeadlineExceededException.class, () -> late.deleteQueue("orders"));
      assertThrows(DeadlineExceededException.class, () -> late.enqueue(message("x")));
    }
    assertEquals(List.of(), broker.seen);
  }

  // --- Metadata ---------------------------------------------------------------------------------

  @Test
  void theApiKeyIsSentOnUnaryCallsAndStreams() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    FilaClient known = connect(builder().apiKey(KEY));
    known.enqueue(message("x"));
    known.consume("orders").iterator().next();
    assertEquals(2, broker.seen.size());
    broker.seen.forEach(call -> assertEquals("Bearer " + KEY, call.metadata("authorization")));
  }

  @Test
  void withoutAnApiKeyNoneIsSent() throws Exception {
    client.enqueue(message("x"));
    assertNull(broker.seen.get(0).metadata("authorization"));
  }

  @Test
  void theUserAgentNamesTheClient() throws Exception {
    client.enqueue(message("x"));
    String agent = broker.seen.get(0).metadata("user-agent");
    assertTrue(agent.startsWith("fila-java/" + FilaClient.version() + " "), agent);
    assertTrue(FilaClient.version().matches("\\d+\\.\\d+\\.\\d+.*"), FilaClient.version());
  }

  @Test
  void theApiKeyIsNotShownByErrors() throws Exception {
    for (String method : List.of("EnqueueBatch", "GetConfig", "Consume")) {
      broker.refuse(
          method, Status.Code.UNAUTHENTICATED, "key " + KEY + " is not valid", "UNAUTHENTICATED");
    }
    FilaClient known = connect(builder().apiKey(KEY));
    List<Executable> calls =
        List.of(
            () -> known.enqueue(message("x")),
            () -> known.getConfig("key"),
            () -> known.consume("orders").poll(PATIENCE),
            () -> known.enqueueMany(List.of(message("x"))).get(0).orThrow());
    for (Executable call : calls) {
      FilaException error = assertThrows(UnauthenticatedException.class, call);
      assertEquals("key [redacted] is not valid", error.getMessage());
      StringWriter shown = new StringWriter();
      error.printStackTrace(new PrintWriter(shown));
      assertFalse(shown.toString().contains(KEY));
    }
    assertFalse(known.toString().contains(KEY));
    assertFalse(
        builder().apiKey(KEY).toString().contains(KEY) || ApiKey.of(KEY).toString().contains(KEY));
  }

  // --- Settings ---------------------------------------------------------------------------------

  @ParameterizedTest
  @ValueSource(strings = {"", "with space", "new\nline", "schlüssel", "nul\0"})
  void aMalformedApiKeyIsRefusedWithoutBeingShown(String key) {
    IllegalArgumentException error =
        assertThrows(
            IllegalArgumentException.class, () -> FilaClient.builder().apiKey(key).build());
    assertEquals(
        "apiKey must be printable ASCII without spaces, and not empty", error.getMessage());
  }

  @ParameterizedTest
  @ValueSource(
      strings = {
        "",
        "localhost",
        "localhost:",
        ":5555",
        "localhost:http",
        "localhost:0",
        "localhost:65536",
        "http://localhost:5555",
        "::1:5555",
        "localhost:-1",
        "localhost:1,",
        "localhost:1,,localhost:2"
      })
  void aTargetThatIsNoAddressIsNamed(String target) {
    IllegalArgumentException error =
        assertThrows(
            IllegalArgumentException.class, () -> FilaClient.builder().target(target).build());
    assertTrue(
        error.getMessage().matches("target \".*\" is not host:port, for example .*")
            && target.contains(error.getMessage().split("\"")[1]),
        error.getMessage());
  }

  @ParameterizedTest
  @ValueSource(strings = {"localhost:5555", "10.0.0.1:1", "[::1]:5555", "dns:///broker:5555", "a:1, [::1]:2"})
  void aTargetThatIsAnAddressIsTaken(String target) {
    FilaClient.builder().target(target).build().close();
  }

  @Test
  void wrongSettingsAreNamed() {
    for (FilaClientBuilder wrong :
        List.of(
            FilaClient.builder().timeout(Duration.ZERO), FilaClient.builder().maxMessageBytes(0))) {
      IllegalArgumentException error = assertThrows(IllegalArgumentException.class, wrong::build);
      assertTrue(error.getMessage().contains("must be positive, got "), error.getMessage());
    }
  }

  // --- Sizes ------------------------------------------------------------------------------------

  @Test
  void framesLargerThanGrpcsDefaultAreReceived() throws Exception {
    ConsumeResponse.Builder frame = ConsumeResponse.newBuilder();
    for (String id : List.of("a", "b", "c")) {
      frame.addMessages(ScriptedBroker.message(id, new byte[3 << 20]));
    }
    broker.deliver(frame.build());
    try (Consumer consumer = client.consume("orders")) {
      assertEquals(3 << 20, consumer.iterator().next().payload().length);
    }
  }

  @Test
  void aSmallLimitIsKeptBothWays() {
    ReceiveResponse answer =
        ReceiveResponse.newBuilder()
            .addMessages(ScriptedBroker.message("a", new byte[2000]))
            .build();
    broker.respond("Receive", request -> answer);
    FilaClient small = connect(builder().maxMessageBytes(1000));
    assertThrows(ResourceExhaustedException.class, () -> small.receive("orders", 1, Duration.ZERO));
    assertThrows(ResourceExhaustedException.class, () -> small.enqueue(message("x".repeat(2000))));
  }

  // --- Close ------------------------------------------------------------------------------------

  @Test
  void afterCloseEveryCallFails() throws Exception {
    client.enqueue(message("x"));
    client.close();
    client.close();
    EnqueueMessage keyed = EnqueueMessage.to("orders").idempotencyKey("k").build();
    List<Executable> calls =
        List.of(
            () -> client.enqueue(message("x")),
            () -> client.enqueue(keyed),
            () -> client.enqueueMany(List.of(message("x"))),
            () -> client.enqueueMany(List.of()),
            () -> client.ack("orders", "m", null),
            () -> client.ackMany(List.of()),
            () -> client.nack("orders", "m", null, "", NackOptions.NONE),
            () -> client.extend("orders", "m", null, null),
            () -> client.receive("orders", 1, Duration.ZERO),
            () -> client.consume("orders"),
            () -> client.listQueues(),
            () -> client.withTimeout(PATIENCE).listQueues());
    for (Executable call : calls) {
      FilaException error = assertThrows(ClientClosedException.class, call);
      assertEquals("the client is closed", error.getMessage());
    }
    ExecutionException failed =
        assertThrows(
            ExecutionException.class,
            () -> client.enqueueAsync(message("x")).get(1, TimeUnit.MINUTES));
    assertInstanceOf(ClientClosedException.class, failed.getCause());
    assertEquals(1, broker.seen.size());
  }

  @Test
  void aClientThatWasNeverUsedCanBeClosed() {
    FilaClient.builder().build().close();
  }

  @Test
  void closeEndsCallsUnderWayAndWaiting() throws Exception {
    broker.script("EnqueueBatch", (request, observer) -> {});
    EnqueueMessage keyed = EnqueueMessage.to("orders").idempotencyKey("k").build();
    List<CompletableFuture<String>> calls = new ArrayList<>();
    for (int number = 0; number < 4; number++) {
      calls.add(client.enqueueAsync(message("x")));
      calls.add(client.enqueueAsync(keyed));
    }
    eventually(() -> broker.seen.size() == Coalescer.REQUESTS_UNDER_WAY_MAX);
    client.close();
    for (CompletableFuture<String> call : calls) {
      ExecutionException failed =
          assertThrows(ExecutionException.class, () -> call.get(1, TimeUnit.MINUTES));
      assertInstanceOf(ClientClosedException.class, failed.getCause());
    }
  }

  @Test
  void closeEndsACallThatWaitsToBeSentAgain() throws Exception {
    broker.refuse("GetConfig", Status.Code.UNAVAILABLE, "away", null);
    Duration longest = Duration.ofMinutes(10);
    FilaClient patient =
        connect(builder().timeout(Duration.ofHours(10)).backoff(new Backoff(longest, longest)));
    CompletableFuture<FilaException> found = new CompletableFuture<>();
    threads.submit(
        () -> found.complete(assertThrows(FilaException.class, () -> patient.getConfig("k"))));
    eventually(() -> broker.seen.size() == 1);
    patient.close();
    assertInstanceOf(ClientClosedException.class, found.get(1, TimeUnit.MINUTES));
  }

  @Test
  void aBrokerThatComesBackIsFoundAtTheClientsPace() throws Exception {
    int port = freePort();
    ScriptedBroker first = startAt(port, starting -> {});
    FilaClient quick = connect(builder().target(first.target()).backoff(QUICK));
    quick.enqueue(message("x"));
    first.close();
    // Long enough for gRPC's own waits to have grown beyond a second.
    long end = System.nanoTime() + Duration.ofSeconds(2).toNanos();
    while (System.nanoTime() < end) {
      assertThrows(UnavailableException.class, () -> quick.enqueue(message("x")));
      Thread.sleep(50);
    }
    ScriptedBroker second = startAt(port, starting -> {});
    eventually(
        () -> {
          try {
            return quick.enqueue(message("y")).startsWith("y#");
          } catch (FilaException away) {
            return false;
          }
        });
    assertEquals(1, second.seen.size());
  }
}

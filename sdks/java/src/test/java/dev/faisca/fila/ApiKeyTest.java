// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** An API key that a function gives: each call carries what it gave for it. */
class ApiKeyTest extends BrokerTest {
  private volatile String key = "first";

  private FilaClient keyed() {
    return connect(builder().apiKey(() -> key));
  }

  private static void assertKey(String expected, ScriptedBroker.Seen call) {
    assertEquals("Bearer " + expected, call.metadata("authorization"));
  }

  private ScriptedBroker.Seen last() {
    return broker.seen.get(broker.seen.size() - 1);
  }

  @Test
  void everyCallAndEveryStreamAsksForIt() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    broker.refuse("GetConfig", Status.Code.NOT_FOUND, "none", "CONFIG_NOT_FOUND");
    FilaClient client = keyed();
    assertThrows(ConfigNotFoundException.class, () -> client.getConfig("k"));
    assertKey("first", last());
    key = "second";
    assertThrows(ConfigNotFoundException.class, () -> client.getConfig("k"));
    assertKey("second", last());
    key = "third";
    try (Consumer consumer = client.consume("orders")) {
      consumer.poll(PATIENCE);
    }
    assertKey("third", broker.calls("Consume").get(0));
  }

  @Test
  void anotherKeyOpensAnotherPipelineAndTheOldOneAnswersWhatItHas() throws Exception {
    Gate gate = new Gate(broker, "EnqueueBatch", broker::store);
    FilaClient client = keyed();
    Future<EnqueueResult> old =
        threads.submit(() -> client.enqueueMany(List.of(message("a"))).get(0));
    gate.awaitRequests(1);
    key = "second";
    Future<EnqueueResult> young =
        threads.submit(() -> client.enqueueMany(List.of(message("b"))).get(0));
    gate.awaitRequests(1);
    assertKey("first", broker.seen.get(0));
    assertKey("second", broker.seen.get(1));
    await(broker.pipings.get(0).halfClosed);
    gate.open();
    assertTrue(old.get(PATIENCE.toSeconds(), TimeUnit.SECONDS).orThrow().startsWith("a#"));
    assertTrue(young.get(PATIENCE.toSeconds(), TimeUnit.SECONDS).orThrow().startsWith("b#"));
    client.enqueue(message("c"));
    assertEquals(2, broker.pipings.size());
    assertSame(broker.pipings.get(1), last().piping());
    assertNotEquals(0, broker.pipings.get(1).halfClosed.getCount());
  }

  @Test
  void noKeyIsNone() throws Exception {
    key = null;
    keyed().enqueue(message("x"));
    assertNull(last().metadata("authorization"));
  }

  /** As functions of other languages of the JVM may. */
  @SuppressWarnings("unchecked")
  private static <T extends Throwable> String undeclared(Throwable cause) throws T {
    throw (T) cause;
  }

  @Test
  void whatTheFunctionThrowsUndeclaredFailsTheCallToo() throws Exception {
    for (Throwable cause : List.of(new IOException("sealed"), new AssertionError("sealed"))) {
      FilaClient client =
          connect(builder().apiKey(() -> ApiKeyTest.<RuntimeException>undeclared(cause)));
      List<Executable> calls =
          List.of(
              () -> client.enqueueAsync(message("x")).get(PATIENCE.toSeconds(), TimeUnit.SECONDS),
              () -> client.enqueueMany(List.of(message("x"))).get(0).orThrow(),
              () -> client.getConfig("k"));
      for (Executable call : calls) {
        Throwable error = assertThrows(Exception.class, call);
        if (error instanceof ExecutionException) {
          error = error.getCause();
        }
        assertInstanceOf(UnauthenticatedException.class, error);
        assertSame(cause, error.getCause().getCause());
      }
    }
    assertEquals(List.of(), broker.seen);
  }

  @Test
  void whatTheFunctionThrowsFailsTheCallAndNothingElse() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    IllegalStateException cause = new IllegalStateException("the vault is sealed");
    FilaClient client =
        connect(
            builder()
                .apiKey(
                    () -> {
                      if (key == null) {
                        throw cause;
                      }
                      return key;
                    }));
    key = null;
    List<Executable> calls =
        List.of(
            () -> client.enqueue(message("x")),
            () -> client.enqueueMany(List.of(message("x"))).get(0).orThrow(),
            () -> client.getConfig("k"),
            () -> client.consume("orders").poll(PATIENCE));
    for (Executable call : calls) {
      FilaException error = assertThrows(UnauthenticatedException.class, call);
      assertTrue(error.getMessage().endsWith(": the vault is sealed"), error.getMessage());
      assertInstanceOf(IllegalStateException.class, error.getCause().getCause());
    }
    assertEquals(List.of(), broker.seen);
    key = "open";
    client.enqueue(message("x"));
    assertKey("open", last());
  }

  @Test
  void aMalformedKeyOfAFunctionFailsTheCallWithoutBeingShown() {
    key = "not a key";
    FilaException error =
        assertThrows(UnauthenticatedException.class, () -> keyed().enqueue(message("x")));
    assertTrue(error.getMessage().contains("must be printable ASCII"), error.getMessage());
    assertFalse(error.getMessage().contains("not a key"));
  }

  @Test
  void errorsShowNeitherTheKeyNorTheOneBefore() throws Exception {
    FilaClient client = keyed();
    client.enqueue(message("x"));
    key = "second";
    broker.refuse("GetConfig", Status.Code.INTERNAL, "first and second", null);
    FilaException error = assertThrows(InternalException.class, () -> client.getConfig("k"));
    assertEquals("[redacted] and [redacted]", error.getMessage());
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.testing;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.EnqueueMessage;
import dev.faisca.fila.ExtendResult;
import dev.faisca.fila.FilaClient;
import dev.faisca.fila.QueueAlreadyExistsException;
import dev.faisca.fila.QueueSettings;
import dev.faisca.fila.UnauthenticatedException;
import dev.faisca.fila.UnavailableException;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A broker for tests is a real one, and leaves nothing behind. */
class TestBrokerTest {
  private static final Duration PATIENCE = Duration.ofSeconds(60);

  private static TestBroker broker;
  private static FilaClient client;

  @BeforeAll
  static void start() {
    broker = TestBroker.start();
    client = FilaClient.builder().target(broker.address()).timeout(PATIENCE).build();
  }

  @AfterAll
  static void stop() {
    client.close();
    broker.close();
  }

  private static FilaClient quick(String address) {
    return FilaClient.builder().target(address).timeout(PATIENCE).build();
  }

  @Test
  void messagesGoThroughIt() throws Exception {
    client.createQueue("letters");
    client.enqueue("letters", Map.of(), "hello".getBytes(UTF_8));
    List<ConsumeMessage> received = client.receive("letters", 1, PATIENCE);
    assertEquals("hello", received.get(0).text());
    List<ExtendResult> extended = client.extendMany(received, Duration.ofMinutes(5));
    assertEquals(received.get(0).leaseExpiresAt(), extended.get(0).orThrow());
    received.get(0).ack();
  }

  @Test
  void itIsReadyAndAnswersPings() throws Exception {
    client.waitReady();
    assertFalse(client.ping().isNegative());
  }

  @Test
  void aQueueThatIsThereIsEnsuredAsItIs() throws Exception {
    QueueSettings settings =
        QueueSettings.builder()
            .visibilityTimeout(Duration.ofSeconds(9))
            .maxAttempts(3)
            .quantum(0)
            .onFailureScript("")
            .build();
    assertEquals("ensured.dlq", client.ensureQueue("ensured", settings));
    assertEquals("ensured.dlq", client.ensureQueue("ensured", settings));
    assertEquals("ensured.dlq", client.ensureQueue("ensured"));
    QueueAlreadyExistsException differs =
        assertThrows(
            QueueAlreadyExistsException.class,
            () ->
                client.ensureQueue(
                    "ensured", QueueSettings.builder().maxAttempts(5).quantum(7).build()));
    assertTrue(differs.getMessage().contains("max_attempts is 3, not 5"), differs.getMessage());
    assertEquals(3, client.stats("ensured").config().maxAttempts());
  }

  @Test
  void itsConfigurationCanBeExtended() throws Exception {
    String key = "a-secret-of-this-test";
    try (TestBroker guarded = TestBroker.start("[auth]\nbootstrap_apikey = \"" + key + "\"\n");
        FilaClient nobody = quick(guarded.address());
        FilaClient known =
            FilaClient.builder()
                .target(guarded.address())
                .timeout(PATIENCE)
                .apiKey(() -> key)
                .build()) {
      assertThrows(UnauthenticatedException.class, () -> nobody.createQueue("orders"));
      assertFalse(nobody.ping().isNegative());
      known.createQueue("orders");
      known.enqueue(EnqueueMessage.to("orders").text("x").build());
      assertEquals("x", known.receive("orders", 1, PATIENCE).get(0).text());
    }
  }

  @Test
  void nothingIsLeftOfAClosedOne() throws Exception {
    TestBroker other = TestBroker.start();
    other.close();
    other.close();
    try (FilaClient late = quick(other.address())) {
      assertThrows(UnavailableException.class, late::ping);
    }
  }

  @Test
  void aConfigurationThatItRefusesIsShown() {
    IllegalStateException error =
        assertThrows(IllegalStateException.class, () -> TestBroker.start("[nonsense]\nx = 1\n"));
    assertTrue(error.getMessage().contains("nonsense"), error.getMessage());
  }

  /** A program that starts a broker, says where, and dies when it hears something. */
  static final class Mortal {
    public static void main(String[] arguments) throws IOException {
      System.out.println(TestBroker.start().address());
      System.in.read();
      Runtime.getRuntime().halt(1);
    }
  }

  private static Process java(Path folder, String path, Class<?> main) throws Exception {
    ProcessBuilder builder =
        new ProcessBuilder(
            System.getProperty("java.home") + File.separator + "bin" + File.separator + "java",
            "-Djava.io.tmpdir=" + folder,
            "-cp",
            System.getProperty("java.class.path"),
            main.getName());
    if (path != null) {
      builder.environment().put("PATH", path);
      builder.environment().remove("FILA_SERVER");
    }
    return builder.start();
  }

  @Test
  void itDoesNotOutliveTheProgramThatStartedIt(@TempDir Path folder) throws Exception {
    Process mortal = java(folder, null, Mortal.class);
    try (BufferedReader output = mortal.inputReader(UTF_8)) {
      try (FilaClient early = quick(output.readLine())) {
        assertFalse(early.ping().isNegative());
      }
      List<ProcessHandle> started = mortal.descendants().toList();
      assertEquals(1, started.size());
      mortal.outputWriter(UTF_8).append('.').flush();
      assertTrue(mortal.waitFor(PATIENCE.toSeconds(), TimeUnit.SECONDS));
      started.get(0).onExit().get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
    }
  }

  @Test
  void whoHasNoBrokerIsToldHowToGetOne(@TempDir Path folder) throws Exception {
    Process poor = java(folder, folder.toString(), Mortal.class);
    String said;
    try (BufferedReader errors = poor.errorReader(UTF_8)) {
      said = String.join("\n", errors.lines().toList());
    }
    assertTrue(said.contains("install it with `pip install fila-server`"), said);
    assertEquals(1, poor.waitFor());
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.InsecureServerCredentials;
import java.io.IOException;
import java.net.BindException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** What tests against a scripted broker have in common: one broker, one client, other threads. */
abstract class BrokerTest {
  /** Far more than anything here takes, so that a busy machine fails no test. */
  static final Duration PATIENCE = Duration.ofSeconds(30);

  private static final AtomicInteger NEXT_PORT = new AtomicInteger(new Random().nextInt(12_000));

  static final Backoff QUICK = new Backoff(Duration.ofMillis(20), Duration.ofMillis(100));

  ScriptedBroker broker;
  FilaClient client;
  final ExecutorService threads = Executors.newCachedThreadPool();
  private final List<AutoCloseable> opened = new ArrayList<>();

  @BeforeEach
  void open() {
    broker = start(new ScriptedBroker());
    client = connect(builder());
  }

  @AfterEach
  void close() throws Exception {
    for (int index = opened.size() - 1; index >= 0; index--) {
      opened.get(index).close();
    }
    threads.shutdownNow();
    assertTrue(threads.awaitTermination(PATIENCE.toSeconds(), TimeUnit.SECONDS));
  }

  <T extends AutoCloseable> T start(T resource) {
    opened.add(resource);
    return resource;
  }

  /** Starts another broker, which has its script before it answers anybody. */
  ScriptedBroker startAt(int port, java.util.function.Consumer<ScriptedBroker> script) {
    return start(new ScriptedBroker(port, InsecureServerCredentials.create(), script));
  }

  /**
   * A port where nobody listens, for brokers that come later or again. No other test is given it,
   * and no connection: of the ephemeral range, whoever listens on port 0 could take it meanwhile,
   * and a client that tries to connect there may find itself.
   */
  static int freePort() throws IOException {
    while (true) {
      int port = 20_000 + Math.floorMod(NEXT_PORT.getAndIncrement(), 12_000);
      try (ServerSocket probe = new ServerSocket(port, 1, InetAddress.getByName("127.0.0.1"))) {
        return probe.getLocalPort();
      } catch (BindException taken) {
        continue;
      }
    }
  }

  void willAnswer(String method, Object answer) {
    broker.respond(method, request -> answer);
  }

  /** The first request of a method. */
  Object sent(String method) {
    return broker.calls(method).get(0).request();
  }

  FilaClientBuilder builder() {
    // Tests leave calls unanswered, and closing should not wait for them.
    return FilaClient.builder()
        .target(broker.target())
        .timeout(PATIENCE)
        .closeTimeout(Duration.ZERO);
  }

  FilaClient connect(FilaClientBuilder builder) {
    return start(builder.build());
  }

  static EnqueueMessage message(String payload) {
    return EnqueueMessage.to("orders").payload(payload.getBytes(UTF_8)).build();
  }

  static void eventually(BooleanSupplier condition) throws InterruptedException {
    long end = System.nanoTime() + PATIENCE.toNanos();
    while (!condition.getAsBoolean()) {
      assertTrue(System.nanoTime() < end, "it did not happen in time");
      Thread.sleep(2);
    }
  }

  static void await(CountDownLatch latch) throws InterruptedException {
    assertTrue(latch.await(PATIENCE.toSeconds(), TimeUnit.SECONDS), "it did not happen in time");
  }

  /** Holds requests of one method at the broker until it is opened. */
  static final class Gate {
    private final CountDownLatch open = new CountDownLatch(1);
    private final Semaphore arrived = new Semaphore(0);

    Gate(ScriptedBroker broker, String method, ScriptedBroker.Answer answer) {
      broker.respond(
          method,
          request -> {
            arrived.release();
            await(open);
            return answer.to(request);
          });
    }

    void awaitRequests(int count) throws InterruptedException {
      assertTrue(arrived.tryAcquire(count, PATIENCE.toSeconds(), TimeUnit.SECONDS));
    }

    void open() {
      open.countDown();
    }
  }
}

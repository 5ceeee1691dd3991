// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Int32Value;
import io.grpc.Status;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Whether the broker is there. */
class HealthTest extends BrokerTest {
  private static final int NOT_SERVING = 2;

  @Test
  void aPingTakesSomeTime() throws Exception {
    Duration took = client.ping();
    assertTrue(took.toNanos() > 0 && took.compareTo(PATIENCE) < 0, took::toString);
  }

  @Test
  void aBrokerThatDoesNotServeIsUnavailableAndIsAskedOnce() {
    AtomicInteger asked = new AtomicInteger();
    broker.respond(
        "Check",
        request -> {
          asked.incrementAndGet();
          return Int32Value.of(NOT_SERVING);
        });
    UnavailableException error = assertThrows(UnavailableException.class, client::ping);
    assertEquals(
        "broker \"%s\" is not serving".formatted(broker.target()), error.getMessage());
    assertTrue(error.isRetryable());
    assertEquals(1, asked.get());
  }

  @Test
  void aPingHasTheClientsDeadline() {
    broker.script("Check", (request, observer) -> {});
    assertThrows(
        DeadlineExceededException.class, client.withTimeout(Duration.ofMillis(100))::ping);
  }

  @Test
  void waitingEndsWhenTheBrokerServes() throws Exception {
    CountDownLatch asked = new CountDownLatch(2);
    broker.respond(
        "Check",
        request -> {
          asked.countDown();
          return Int32Value.of(asked.getCount() > 0 ? NOT_SERVING : Health.SERVING);
        });
    connect(builder().backoff(QUICK)).waitReady();
    await(asked);
  }

  @Test
  void waitingMayBeginBeforeTheBrokerDoes() throws Exception {
    int port = freePort();
    FilaClient early = connect(builder().target("127.0.0.1:" + port).backoff(QUICK));
    Future<?> waiting =
        threads.submit(
            () -> {
              early.waitReady(PATIENCE);
              return null;
            });
    assertThrows(UnavailableException.class, early::ping);
    assertFalse(waiting.isDone());
    startAt(port, starting -> {});
    waiting.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
  }

  @Test
  void whoWaitsInVainIsToldTheLastFailure() throws Exception {
    FilaClient alone = connect(builder().target("127.0.0.1:" + freePort()).backoff(QUICK));
    DeadlineExceededException error =
        assertThrows(
            DeadlineExceededException.class, () -> alone.waitReady(Duration.ofMillis(300)));
    assertTrue(error.getMessage().contains(" was not ready within PT0.3S: cannot reach "));
    assertInstanceOf(UnavailableException.class, error.getCause());
  }

  @Test
  void whatWaitingWouldNotCureIsThrownAtOnce() {
    broker.refuse("Check", Status.Code.UNIMPLEMENTED, "no such service", null);
    assertThrows(UnimplementedException.class, () -> client.waitReady(PATIENCE));
  }

  @Test
  void closingTheClientEndsTheWaiting() throws Exception {
    CountDownLatch asked = new CountDownLatch(1);
    broker.respond(
        "Check",
        request -> {
          asked.countDown();
          return Int32Value.of(NOT_SERVING);
        });
    Duration longest = Duration.ofMinutes(10);
    FilaClient patient = connect(builder().backoff(new Backoff(longest, longest)));
    Future<FilaException> ended =
        threads.submit(
            () -> assertThrows(FilaException.class, () -> patient.waitReady(longest)));
    await(asked);
    patient.close();
    FilaException error = ended.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
    assertInstanceOf(ClientClosedException.class, error);
  }
}

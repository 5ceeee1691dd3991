// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.ConnectionEvent.Kind;
import io.grpc.InsecureServerCredentials;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.Test;

/** What becomes of the connection is told once per change, and there may be several addresses. */
class ConnectionEventTest extends BrokerTest {
  private final List<ConnectionEvent> events = new CopyOnWriteArrayList<>();

  private List<Kind> kinds() {
    return events.stream().map(ConnectionEvent::kind).toList();
  }

  private FilaClient told(String target) {
    return connect(builder().target(target).backoff(QUICK).onConnection(events::add));
  }

  private static boolean isThere(FilaClient client) {
    try {
      client.ping();
      return true;
    } catch (FilaException away) {
      return false;
    }
  }

  @Test
  void aClientThatNobodyUsesSaysNothing() throws Exception {
    FilaClient lazy = told(broker.target());
    // Another one has been there and back meanwhile.
    client.enqueue(message("x"));
    assertEquals(List.of(), events);
    lazy.enqueue(message("x"));
    eventually(() -> kinds().equals(List.of(Kind.CONNECTED)));
  }

  @Test
  void eachChangeIsToldOnceAndLogged() throws Exception {
    int port = freePort();
    String target = "127.0.0.1:" + port;
    try (Logged logged = new Logged()) {
      FilaClient client = told(target);
      for (int attempt = 0; attempt < 20; attempt++) {
        assertThrows(UnavailableException.class, client::ping);
      }
      eventually(() -> kinds().equals(List.of(Kind.UNREACHABLE)));
      String reason = events.get(0).reason();
      assertTrue(reason.startsWith("cannot reach \"" + target + "\": "), reason);
      ScriptedBroker first = startAt(port, starting -> {});
      eventually(() -> isThere(client));
      eventually(() -> events.size() == 2);
      first.close();
      eventually(() -> events.size() == 3);
      assertNull(events.get(2).reason());
      eventually(() -> !isThere(client) && events.size() == 4);
      startAt(port, starting -> {});
      eventually(() -> isThere(client) && events.size() == 5);
      assertEquals(
          List.of(
              Kind.UNREACHABLE, Kind.CONNECTED, Kind.LOST, Kind.UNREACHABLE, Kind.CONNECTED),
          kinds());
      List<String> lines =
          logged.lines().stream().map(line -> line.replaceAll("after .* s$", "after T s")).toList();
      String unreachable = "WARNING broker \"" + target + "\" is unreachable: ";
      assertTrue(lines.get(0).startsWith(unreachable), lines::toString);
      assertTrue(lines.get(3).startsWith(unreachable), lines::toString);
      String again = "INFO connected to \"" + target + "\" again, after T s";
      assertEquals(
          List.of(again, "WARNING connection to \"" + target + "\" was lost", again),
          List.of(lines.get(1), lines.get(2), lines.get(4)));
      assertEquals(5, lines.size(), lines::toString);
    }
  }

  @Test
  void closingIsNoLoss() throws Exception {
    FilaClient client = told(broker.target());
    client.enqueue(message("x"));
    eventually(() -> events.size() == 1);
    client.close();
    assertThrows(ClientClosedException.class, client::ping);
    assertEquals(List.of(Kind.CONNECTED), kinds());
  }

  /** As functions of other languages of the JVM may. */
  @SuppressWarnings("unchecked")
  private static <T extends Throwable> void undeclared(Throwable cause) throws T {
    throw (T) cause;
  }

  @Test
  void whatTheFunctionThrowsUndeclaredChangesNothing() throws Exception {
    List<Kind> told = new CopyOnWriteArrayList<>();
    FilaClient client =
        connect(
            builder()
                .onConnection(
                    event -> {
                      told.add(event.kind());
                      ConnectionEventTest.<RuntimeException>undeclared(new IOException("no"));
                    }));
    client.enqueue(message("x"));
    broker.close();
    eventually(() -> told.contains(Kind.LOST));
  }

  @Test
  void whatTheFunctionThrowsIsLoggedAndChangesNothing() throws Exception {
    try (Logged logged = new Logged()) {
      FilaClient client =
          connect(
              builder()
                  .onConnection(
                      event -> {
                        throw new AssertionError("no");
                      }));
      client.enqueue(message("x"));
      eventually(() -> logged.has("WARNING onConnection has failed, which changes nothing"));
      client.enqueue(message("y"));
    }
  }

  // --- Addresses --------------------------------------------------------------------------------

  @Test
  void theFirstMemberThatAnswersIsUsedAndTheyAreTriedAgainAfterItsLoss() throws Exception {
    int port = freePort();
    ScriptedBroker second =
        start(new ScriptedBroker(0, InsecureServerCredentials.create(), starting -> {}));
    String targets = "127.0.0.1:%d, localhost:%d".formatted(port, second.port());
    FilaClient client = told(targets);
    client.enqueue(message("x"));
    assertEquals(1, second.seen.size());
    ScriptedBroker first = startAt(port, starting -> {});
    client.enqueue(message("y"));
    assertEquals(2, second.seen.size());
    second.close();
    eventually(() -> kinds().contains(Kind.LOST));
    eventually(() -> isThere(client));
    client.enqueue(message("z"));
    assertEquals(1, first.seen.size());
    assertEquals(List.of(Kind.CONNECTED, Kind.LOST, Kind.CONNECTED), kinds());
  }

  @Test
  void whereNoMemberAnswersAllAreNamed() throws Exception {
    String targets = "127.0.0.1:%d,127.0.0.1:%d".formatted(freePort(), freePort());
    FilaClient client = connect(builder().target(targets));
    FilaException error = assertThrows(UnavailableException.class, client::ping);
    assertTrue(error.getMessage().contains("cannot reach \"" + targets + "\": "));
  }

  @Test
  void aNameThatDoesNotResolveLeavesTheOthers() throws Exception {
    FilaClient client = connect(builder().target("nowhere.invalid:1," + broker.target()));
    client.withTimeout(Duration.ofMinutes(1)).enqueue(message("x"));
    assertEquals(1, broker.seen.size());
  }
}

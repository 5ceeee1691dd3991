// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors.CheckedForwardingClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Interceptors of gRPC see every call, and harm only what they fail. */
class InterceptorsTest extends BrokerTest {
  private static final Metadata.Key<String> TRAIL =
      Metadata.Key.of("trail", Metadata.ASCII_STRING_MARSHALLER);

  private final List<String> seen = new CopyOnWriteArrayList<>();
  private final AtomicReference<Exception> failure = new AtomicReference<>();

  /** Leaves its name, and fails when it is told to. */
  private final class Trailing implements ClientInterceptor {
    private final String name;

    Trailing(String name) {
      this.name = name;
    }

    @Override
    public <Q, A> ClientCall<Q, A> interceptCall(
        MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
      if (failure.get() instanceof RuntimeException defect) {
        throw defect;
      }
      return new CheckedForwardingClientCall<>(next.newCall(method, options)) {
        @Override
        protected void checkedStart(Listener<A> listener, Metadata headers) throws Exception {
          if (failure.get() != null) {
            throw failure.get();
          }
          seen.add(name + " " + method.getBareMethodName() + " " + headers.keys());
          headers.put(TRAIL, name);
          delegate().start(listener, headers);
        }
      };
    }
  }

  private FilaClient intercepted() {
    return connect(
        builder()
            .apiKey("key")
            .interceptors(List.of(new Trailing("outer"), new Trailing("inner"))));
  }

  @Test
  void theFirstIsOutermostAndNoneSeesTheKey() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    FilaClient client = intercepted();
    client.enqueue(message("x"));
    client.consume("orders").poll(PATIENCE);
    client.ping();
    assertEquals(
        List.of(
            "outer Pipeline []",
            "inner Pipeline [trail]",
            "outer Consume []",
            "inner Consume [trail]",
            "outer Check []",
            "inner Check [trail]"),
        seen);
    ScriptedBroker.Seen call = broker.calls("Consume").get(0);
    assertEquals(
        List.of("outer", "inner"),
        all(call.metadata().getAll(TRAIL)));
    assertEquals("Bearer key", call.metadata("authorization"));
  }

  private static List<String> all(Iterable<String> values) {
    List<String> all = new CopyOnWriteArrayList<>();
    values.forEach(all::add);
    return all;
  }

  @Test
  void whatOneFailsIsThatCallAlone() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    FilaClient client = intercepted();
    List<Executable> calls =
        List.of(
            () -> client.enqueue(message("x")),
            () -> client.enqueueMany(List.of(message("x"))).get(0).orThrow(),
            () -> client.getConfig("k"),
            () -> client.consume("orders").poll(PATIENCE));
    Set<Exception> failures =
        Set.of(
            Status.PERMISSION_DENIED.withDescription("not today").asException(),
            Status.PERMISSION_DENIED.withDescription("not today").asRuntimeException());
    for (Exception told : failures) {
      failure.set(told);
      for (Executable call : calls) {
        FilaException error = assertThrows(PermissionDeniedException.class, call);
        assertEquals("not today", error.getMessage());
      }
    }
    assertEquals(List.of(), broker.seen);
    failure.set(null);
    assertFalse(client.enqueue(message("x")).isEmpty());
  }
}

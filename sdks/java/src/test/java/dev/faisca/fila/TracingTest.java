// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.EnqueueBatchRequest;
import dev.faisca.fila.internal.v1.EnqueueRequest;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import io.opentelemetry.sdk.trace.export.SpanExporter;
import io.opentelemetry.sdk.trace.samplers.Sampler;
import java.io.File;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** The active span travels with the message and with the call; nobody's own context is replaced. */
class TracingTest extends BrokerTest {
  private static final String OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

  private static Span span(Sampler sampler, Context parent) {
    return SdkTracerProvider.builder()
        .setSampler(sampler)
        .addSpanProcessor(SimpleSpanProcessor.create(SpanExporter.composite()))
        .build()
        .get("test")
        .spanBuilder("produce")
        .setParent(parent)
        .startSpan();
  }

  private static String parentOf(Span span) {
    SpanContext context = span.getSpanContext();
    return "00-%s-%s-%s"
        .formatted(context.getTraceId(), context.getSpanId(), context.getTraceFlags().asHex());
  }

  private List<Map<String, String>> headersSent() {
    return broker.requests("EnqueueBatch", EnqueueBatchRequest.class).stream()
        .flatMap(request -> request.getMessagesList().stream())
        .map(EnqueueRequest::getHeadersMap)
        .toList();
  }

  private interface Work {
    void run() throws Exception;
  }

  private static void within(Span span, Work work) throws Exception {
    Context.root()
        .with(span)
        .wrap(
            () -> {
              work.run();
              return null;
            })
        .call();
  }

  @Test
  void theActiveSpanIsInHeadersAndMetadata() throws Exception {
    broker.deliver(ScriptedBroker.frame("a"));
    Span span = span(Sampler.alwaysOn(), Context.root());
    within(
        span,
        () -> {
          client.enqueue("orders", Map.of("a", "b"), new byte[0]);
          client.enqueueMany(List.of(message("x"), message("y")));
          client.ack("orders", "m-1", null);
          client.consume("orders").iterator().next();
        });
    String expected = parentOf(span);
    assertEquals(
        List.of(
            Map.of("a", "b", "traceparent", expected),
            Map.of("traceparent", expected),
            Map.of("traceparent", expected)),
        headersSent());
    broker.seen.forEach(call -> assertEquals(expected, call.metadata("traceparent")));
  }

  @Test
  void tracestateTravelsToo() throws Exception {
    Map<String, String> carrier = Map.of("traceparent", OWN, "tracestate", "vendor=value");
    Context parent =
        W3CTraceContextPropagator.getInstance().extract(Context.root(), carrier, Map::get);
    within(span(Sampler.alwaysOn(), parent), () -> client.enqueue(message("x")));
    assertEquals("vendor=value", headersSent().get(0).get("tracestate"));
    assertEquals("vendor=value", broker.seen.get(0).metadata("tracestate"));
    assertTrue(headersSent().get(0).get("traceparent").contains(OWN.split("-")[1]));
  }

  @Test
  void aTraceparentOfTheCallersOwnIsUntouched() throws Exception {
    Map<String, String> nonsense = Map.of("traceparent", "nonsense", "tracestate", "mine=1");
    within(
        span(Sampler.alwaysOn(), Context.root()),
        () -> {
          client.enqueue("orders", Map.of("traceparent", OWN), new byte[0]);
          client.enqueue("orders", nonsense, new byte[0]);
        });
    assertEquals(List.of(Map.of("traceparent", OWN), nonsense), headersSent());
  }

  @Test
  void withoutARecordingSpanNothingIsAdded() throws Exception {
    client.enqueue(message("x"));
    within(span(Sampler.alwaysOff(), Context.root()), () -> client.enqueue(message("x")));
    assertEquals(List.of(Map.of(), Map.of()), headersSent());
    broker.seen.forEach(call -> assertNull(call.metadata("traceparent")));
  }

  @Test
  void eachMessageOfASharedRequestKeepsItsOwnTrace() {
    assertEquals(
        Map.of("traceparent", "a"),
        Wire.enqueue(message("x"), Map.of("traceparent", "a")).request().getHeadersMap());
    assertEquals(Map.of(), Wire.enqueue(message("x"), Map.of()).request().getHeadersMap());
  }

  /** A program without OpenTelemetry, for the test below. */
  static final class Untraced {
    public static void main(String[] arguments) throws Exception {
      try (FilaClient client = FilaClient.builder().target(arguments[0]).build()) {
        client.enqueue("orders", Map.of("a", "b"), new byte[0]);
      }
    }
  }

  @Test
  void withoutOpenTelemetryNothingIsAddedAndNothingBreaks() throws Exception {
    String classPath =
        Arrays.stream(System.getProperty("java.class.path").split(File.pathSeparator))
            .filter(entry -> !entry.contains("opentelemetry"))
            .collect(Collectors.joining(File.pathSeparator));
    String java = System.getProperty("java.home") + "/bin/java";
    Process program =
        new ProcessBuilder(java, "-cp", classPath, Untraced.class.getName(), broker.target())
            .redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.DISCARD)
            .start();
    // The program ends by itself too: nothing of a closed client keeps the process alive.
    assertTrue(program.waitFor(2, TimeUnit.MINUTES));
    assertEquals(0, program.exitValue());
    assertEquals(List.of(Map.of("a", "b")), headersSent());
  }
}

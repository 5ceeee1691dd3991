// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.faisca.fila.internal.v1.EnqueueBatchRequest;
import dev.faisca.fila.internal.v1.EnqueueRequest;
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.common.CompletableResultCode;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.data.SpanData;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import io.opentelemetry.sdk.trace.export.SpanExporter;
import io.opentelemetry.sdk.trace.samplers.Sampler;
import java.io.File;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/**
 * The active span travels with the message and with the call; nobody's own context is replaced. And
 * back: a message gives its sender's context, and a span around its handling.
 */
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
    return named(span.getSpanContext());
  }

  private static String named(SpanContext context) {
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
        Message message = new Message(ScriptedBroker.message("m-1", new byte[0]));
        try (Tracing.Processing processing = Tracing.processing(message)) {
          processing.fail(new IllegalStateException());
        }
        if (Tracing.processing(message, () -> 42) != 42) {
          throw new AssertionError("it was not handled");
        }
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

  /** Keeps spans, as the exporter for tests does that is a dependency of its own. */
  private static final class Kept implements SpanExporter {
    private final List<SpanData> spans = new ArrayList<>();

    @Override
    public CompletableResultCode export(Collection<SpanData> ended) {
      spans.addAll(ended);
      return CompletableResultCode.ofSuccess();
    }

    @Override
    public CompletableResultCode flush() {
      return CompletableResultCode.ofSuccess();
    }

    @Override
    public CompletableResultCode shutdown() {
      return CompletableResultCode.ofSuccess();
    }
  }

  /** Spans of the tracers that all programs share are kept from here on. */
  private static List<SpanData> keepSpans() {
    Kept kept = new Kept();
    GlobalOpenTelemetry.resetForTest();
    GlobalOpenTelemetry.set(
        OpenTelemetrySdk.builder()
            .setTracerProvider(
                SdkTracerProvider.builder()
                    .addSpanProcessor(SimpleSpanProcessor.create(kept))
                    .build())
            .build());
    return kept.spans;
  }

  @AfterEach
  void forgetSpans() {
    GlobalOpenTelemetry.resetForTest();
  }

  static Message received(Map<String, String> headers) {
    return new Message(
        ScriptedBroker.message("m-1", new byte[0]).toBuilder().putAllHeaders(headers).build());
  }

  private static List<String> linked(SpanData span) {
    return span.getLinks().stream().map(link -> named(link.getSpanContext())).toList();
  }

  @Test
  void aMessagesContextIsItsSenders() {
    Map<String, String> headers = Map.of("traceparent", OWN, "tracestate", "vendor=value");
    SpanContext sender = Span.fromContext(Tracing.extract(received(headers))).getSpanContext();
    assertEquals(OWN, named(sender));
    assertTrue(sender.isRemote());
    assertEquals("value", sender.getTraceState().get("vendor"));
  }

  @Test
  void aMessageWithoutAContextLeavesTheCurrentOne() throws Exception {
    Span mine = span(Sampler.alwaysOn(), Context.root());
    for (Map<String, String> headers :
        List.of(Map.<String, String>of(), Map.of("traceparent", "nonsense"))) {
      within(
          mine, () -> assertEquals(mine, Span.fromContext(Tracing.extract(received(headers)))));
    }
  }

  @Test
  void processingIsAConsumersSpanBelowItsSender() {
    List<SpanData> ended = keepSpans();
    Tracing.Processing processing = Tracing.processing(received(Map.of("traceparent", OWN)));
    assertTrue(Span.current().isRecording());
    assertEquals(List.of(), ended);
    processing.close();
    assertFalse(Span.current().isRecording());
    SpanData span = ended.get(0);
    assertEquals("process orders", span.getName());
    assertEquals(SpanKind.CONSUMER, span.getKind());
    assertEquals(OWN, named(span.getParentSpanContext()));
    assertEquals(List.of(OWN), linked(span));
    assertEquals(
        Attributes.builder()
            .put("messaging.system", "fila")
            .put("messaging.operation.name", "process")
            .put("messaging.operation.type", "process")
            .put("messaging.destination.name", "orders")
            .put("messaging.message.id", "m-1")
            .put("fairness_key", "default")
            .build(),
        span.getAttributes().toBuilder().build());
    assertEquals(StatusCode.UNSET, span.getStatus().getStatusCode());
  }

  @Test
  void processingInsideASpanIsBelowThatOneAndLinkedToItsSender() throws Exception {
    List<SpanData> ended = keepSpans();
    Span mine = span(Sampler.alwaysOn(), Context.root());
    within(mine, () -> Tracing.processing(received(Map.of("traceparent", OWN)), () -> 42));
    assertEquals(parentOf(mine), named(ended.get(0).getParentSpanContext()));
    assertEquals(List.of(OWN), linked(ended.get(0)));
  }

  @Test
  void processingAMessageWithoutAContextBeginsATrace() throws Exception {
    List<SpanData> ended = keepSpans();
    assertEquals(42, Tracing.processing(received(Map.of("traceparent", "x")), () -> 42));
    assertFalse(ended.get(0).getParentSpanContext().isValid());
    assertEquals(List.of(), linked(ended.get(0)));
  }

  @Test
  void processingThatFailsSaysSoAndThrows() {
    List<SpanData> ended = keepSpans();
    assertThrows(
        IllegalStateException.class,
        () ->
            Tracing.processing(
                received(Map.of()),
                () -> {
                  throw new IllegalStateException("no");
                }));
    SpanData span = ended.get(0);
    assertEquals(StatusCode.ERROR, span.getStatus().getStatusCode());
    assertEquals(
        "java.lang.IllegalStateException",
        span.getAttributes().get(AttributeKey.stringKey("error.type")));
    assertFalse(Span.current().getSpanContext().isValid());
  }

  @Test
  void aSpanThatTheSenderDoesNotSampleIsNotRecorded() throws Exception {
    List<SpanData> ended = keepSpans();
    Map<String, String> headers = Map.of("traceparent", OWN.replaceAll("1$", "0"));
    assertFalse(Tracing.processing(received(headers), () -> Span.current().isRecording()));
    assertEquals(List.of(), ended);
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
import static java.nio.charset.StandardCharsets.UTF_8;

import dev.faisca.fila.ConsumeMessage;
import dev.faisca.fila.FilaClient;
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.context.Context;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.SpanProcessor;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import io.opentelemetry.sdk.trace.export.SpanExporter;
import java.time.Duration;
import java.util.Map;
import java.util.UUID;

/**
 * One trace across a queue: producer, broker, consumer.
 *
 * <p>The client adds the trace context of the active span to the message's headers and to its
 * calls, so that the broker's spans are below it (see {@code [telemetry]} in the broker's
 * configuration). {@code processing} is the consumer's span.
 */
final class Tracing {
  public static void main(String[] arguments) throws Exception {
    String target = System.getenv().getOrDefault("FILA_ADDR", "127.0.0.1:5555");
    // A real program exports its spans; this one only wants them to have ids.
    SpanProcessor nowhere = SimpleSpanProcessor.create(SpanExporter.composite());
    SdkTracerProvider provider = SdkTracerProvider.builder().addSpanProcessor(nowhere).build();
    GlobalOpenTelemetry.set(OpenTelemetrySdk.builder().setTracerProvider(provider).build());
    Tracer tracer = GlobalOpenTelemetry.getTracer("fila.examples.tracing");
    try (FilaClient client = FilaClient.builder().target(target).build()) {
      String queue = "tracing-" + UUID.randomUUID().toString().substring(0, 8);
      client.createQueue(queue);

      Span sending = tracer.spanBuilder("send " + queue).startSpan();
      Context active = Context.root().with(sending);
      active.wrap(() -> client.enqueue(queue, Map.of(), "hello".getBytes(UTF_8))).call();
      sending.end();

      ConsumeMessage message = client.receive(queue, 1, Duration.ofSeconds(2)).get(0);
      // This class has the name of the client's own, which is not imported therefore.
      Span processing =
          dev.faisca.fila.Tracing.processing(
              message,
              () -> {
                message.ack();
                return Span.current();
              });

      String trace = sending.getSpanContext().getTraceId();
      if (!trace.equals(processing.getSpanContext().getTraceId())) {
        throw new AssertionError("the trace was broken");
      }
      System.out.println("one trace for both sides: " + trace);
      client.deleteQueue(queue);
    }
  }
}

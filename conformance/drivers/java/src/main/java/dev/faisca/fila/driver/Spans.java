// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.driver;

import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.sdk.trace.IdGenerator;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import io.opentelemetry.sdk.trace.export.SpanExporter;
import java.util.HashMap;
import java.util.Map;

/** Recording spans that have exactly the context that a request names. */
final class Spans {
  private Spans() {}

  /** A context in which such a span is active. */
  static Context active(String traceparent, String tracestate) {
    Map<String, String> carrier = new HashMap<>();
    carrier.put("traceparent", traceparent);
    carrier.put("tracestate", tracestate);
    Context parent =
        W3CTraceContextPropagator.getInstance().extract(Context.root(), carrier, Map::get);
    // Trace, flags and state come from the parent; the id is made to be the parent's too.
    String spanId = Span.fromContext(parent).getSpanContext().getSpanId();
    SdkTracerProvider provider =
        SdkTracerProvider.builder()
            .setIdGenerator(new Same(spanId))
            .addSpanProcessor(SimpleSpanProcessor.create(SpanExporter.composite()))
            .build();
    Span span = provider.get("fila-driver").spanBuilder("with_span").setParent(parent).startSpan();
    return parent.with(span);
  }

  private record Same(String spanId) implements IdGenerator {
    @Override
    public String generateSpanId() {
      return spanId;
    }

    @Override
    public String generateTraceId() {
      return IdGenerator.random().generateTraceId();
    }
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila.driver;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.common.CompletableResultCode;
import io.opentelemetry.sdk.trace.IdGenerator;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.data.SpanData;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import io.opentelemetry.sdk.trace.export.SpanExporter;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * Recording spans that have exactly the context that a request names, and what became of those that
 * the SDK makes.
 */
final class Spans {
  private static final List<SpanData> ENDED = new ArrayList<>();

  private Spans() {}

  /** Lets spans of the tracers that all programs share be kept. */
  static void record() {
    SdkTracerProvider provider =
        SdkTracerProvider.builder()
            .addSpanProcessor(SimpleSpanProcessor.create(new Kept()))
            .build();
    GlobalOpenTelemetry.set(OpenTelemetrySdk.builder().setTracerProvider(provider).build());
  }

  /** The latest span that has ended, as the protocol shows it. */
  static JsonObject latest() {
    SpanData span = ENDED.get(ENDED.size() - 1);
    JsonObject ok = new JsonObject();
    ok.addProperty("name", span.getName());
    ok.addProperty("kind", span.getKind().name().toLowerCase(Locale.ROOT));
    ok.addProperty("parent", identity(span.getParentSpanContext()));
    JsonArray links = new JsonArray();
    span.getLinks().forEach(link -> links.add(identity(link.getSpanContext())));
    ok.add("links", links);
    JsonObject attributes = new JsonObject();
    span.getAttributes()
        .forEach((key, value) -> attributes.addProperty(key.getKey(), value.toString()));
    ok.add("attributes", attributes);
    return ok;
  }

  private static String identity(SpanContext span) {
    return span.isValid() ? span.getTraceId() + "-" + span.getSpanId() : "";
  }

  private static final class Kept implements SpanExporter {
    @Override
    public CompletableResultCode export(Collection<SpanData> ended) {
      ENDED.addAll(ended);
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

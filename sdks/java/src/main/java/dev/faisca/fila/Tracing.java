// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import java.util.HashMap;
import java.util.Map;

/**
 * W3C trace context of the active span, for message headers and for gRPC metadata.
 *
 * <p>OpenTelemetry is an optional dependency. Only {@code Active} names its classes, and it is not
 * loaded where they are missing.
 */
final class Tracing {
  static final String TRACEPARENT = "traceparent";

  private static final boolean IS_PRESENT = isPresent();

  private Tracing() {}

  /**
   * {@code traceparent}, and {@code tracestate} if there is one; empty without a recording span.
   */
  static Map<String, String> current() {
    return IS_PRESENT ? Active.context() : Map.of();
  }

  private static boolean isPresent() {
    try {
      Class.forName("io.opentelemetry.api.trace.Span", false, Tracing.class.getClassLoader());
      return true;
    } catch (ClassNotFoundException missing) {
      return false;
    }
  }

  private static final class Active {
    private static Map<String, String> context() {
      if (!Span.current().isRecording()) {
        return Map.of();
      }
      Map<String, String> carrier = new HashMap<>();
      W3CTraceContextPropagator.getInstance().inject(Context.current(), carrier, Map::put);
      return carrier;
    }
  }
}

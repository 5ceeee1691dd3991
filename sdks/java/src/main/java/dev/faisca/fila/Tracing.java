// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanBuilder;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.Scope;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/**
 * W3C trace context of the active span, for message headers and for gRPC metadata, and the way
 * back: from a message to the context that sent it, and to a span around its handling.
 *
 * <p>OpenTelemetry is an optional dependency. Where its classes are missing, {@link #processing}
 * does nothing and {@link #extract} cannot be called.
 */
public final class Tracing {
  static final String TRACEPARENT = "traceparent";

  private static final boolean IS_PRESENT = isPresent();

  private Tracing() {}

  /**
   * {@code traceparent}, and {@code tracestate} if there is one; empty without a recording span.
   */
  static Map<String, String> current() {
    return IS_PRESENT ? Active.context() : Map.of();
  }

  /**
   * The current context with the span that sent the message in it, for use with OpenTelemetry; the
   * current one as it is if the message carries none.
   *
   * @param message a message that was delivered
   * @return OpenTelemetry's context
   */
  public static Context extract(Message message) {
    return Active.extract(Context.current(), message);
  }

  /**
   * Starts a consumer's span for the handling of a message, which is active in this thread until it
   * is closed. It is linked to the span that sent the message, and is its child unless a span is
   * active already. Does nothing where OpenTelemetry is missing.
   *
   * <pre>{@code
   * try (var processing = Tracing.processing(message)) {
   *   handle(message);
   * }
   * }</pre>
   *
   * @param message a message that was delivered
   * @return the span, to be closed in this thread; {@link Processing#fail} tells it of a failure
   */
  public static Processing processing(Message message) {
    return IS_PRESENT ? new Active(message) : new Processing();
  }

  /**
   * Handles a message inside a span as {@link #processing(Message)} starts it, and gives what the
   * handling gives. One that throws ends the span as failed.
   *
   * @param <T> what the handling gives
   * @param message a message that was delivered
   * @param handling runs in this thread
   * @return what the handling gave
   * @throws Exception what the handling threw
   */
  public static <T> T processing(Message message, Callable<T> handling) throws Exception {
    return process(processing(message), handling);
  }

  /** The same for a batch: one span that is linked to all senders. */
  static void processing(List<ConsumeMessage> messages, Callable<Void> handling) throws Exception {
    if (messages.size() == 1 || !IS_PRESENT) {
      processing(messages.get(0), handling);
      return;
    }
    process(new Active(messages), handling);
  }

  private static <T> T process(Processing around, Callable<T> handling) throws Exception {
    try (Processing processing = around) {
      try {
        return handling.call();
      } catch (Throwable failure) {
        processing.fail(failure);
        throw failure;
      }
    }
  }

  private static boolean isPresent() {
    try {
      Class.forName("io.opentelemetry.api.trace.Span", false, Tracing.class.getClassLoader());
      return true;
    } catch (ClassNotFoundException missing) {
      return false;
    }
  }

  /** The handling of one message. Closing it ends its span. */
  public static sealed class Processing implements AutoCloseable permits Active {
    private Processing() {}

    /**
     * Ends the span as failed when it is closed.
     *
     * @param failure why the message could not be handled
     */
    public void fail(Throwable failure) {}

    @Override
    public void close() {}
  }

  /** What names OpenTelemetry's classes; it is not loaded where they are missing. */
  private static final class Active extends Processing {
    private final Span span;
    private final Scope scope;

    private Active(Message message) {
      Context active = Context.current();
      if (!Span.fromContext(active).getSpanContext().isValid()) {
        active = extract(active, message);
      }
      SpanBuilder builder =
          process(message.queue(), active)
              .setAttribute("messaging.message.id", message.id())
              .setAttribute("fairness_key", message.fairnessKey());
      link(builder, message);
      span = builder.startSpan();
      scope = active.with(span).makeCurrent();
    }

    /** A batch has many senders, so its span is nobody's child. */
    private Active(List<ConsumeMessage> messages) {
      Context active = Context.current();
      SpanBuilder builder =
          process(messages.get(0).queue(), active)
              .setAttribute("messaging.batch.message_count", messages.size());
      messages.forEach(message -> link(builder, message));
      span = builder.startSpan();
      scope = active.with(span).makeCurrent();
    }

    private static SpanBuilder process(String queue, Context parent) {
      return GlobalOpenTelemetry.getTracer("fila")
          .spanBuilder("process " + queue)
          .setParent(parent)
          .setSpanKind(SpanKind.CONSUMER)
          .setAttribute("messaging.system", "fila")
          .setAttribute("messaging.operation.name", "process")
          .setAttribute("messaging.operation.type", "process")
          .setAttribute("messaging.destination.name", queue);
    }

    private static void link(SpanBuilder builder, Message message) {
      SpanContext sender = Span.fromContext(extract(Context.root(), message)).getSpanContext();
      if (sender.isValid()) {
        builder.addLink(sender);
      }
    }

    @Override
    public void fail(Throwable failure) {
      span.recordException(failure);
      span.setAttribute("error.type", failure.getClass().getName());
      span.setStatus(StatusCode.ERROR, String.valueOf(failure.getMessage()));
    }

    @Override
    public void close() {
      scope.close();
      span.end();
    }

    private static Context extract(Context into, Message message) {
      return W3CTraceContextPropagator.getInstance().extract(into, message.headers(), Map::get);
    }

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

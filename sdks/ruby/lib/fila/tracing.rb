# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

require "fila/version"

# W3C trace context of the active span, for message headers and for gRPC metadata, and the way back:
# from a message to the context that sent it, and to a span around its handling.
#
# OpenTelemetry is never required here: a span can only be active where the application has loaded
# the API itself. Who does not trace pays for nothing.
module Fila
  # Between messages and OpenTelemetry. `extract` and `processing` are for applications.
  module Tracing
    TRACEPARENT = "traceparent"
    TRACESTATE = "tracestate"
    NOTHING = {}.freeze
    # The only version of the format that there is.
    FORMAT = "00"
    private_constant :FORMAT

    module_function

    # `traceparent`, and `tracestate` if there is one, of the recording span; empty without one.
    # @api private
    def current
      return NOTHING unless defined?(::OpenTelemetry::Trace)

      span = ::OpenTelemetry::Trace.current_span
      return NOTHING unless span.recording?

      context = span.context
      flags = context.trace_flags.sampled? ? "01" : "00"
      parent = "#{FORMAT}-#{context.hex_trace_id}-#{context.hex_span_id}-#{flags}"
      state = context.tracestate.to_s
      return { TRACEPARENT => parent } if state.empty?

      { TRACEPARENT => parent, TRACESTATE => state }
    end

    # The current context with the span that sent the message in it, for use with OpenTelemetry;
    # the current one as it is if the message carries none. Nil where OpenTelemetry is not loaded.
    def extract(message)
      return unless defined?(::OpenTelemetry::Trace)

      extracted(message, ::OpenTelemetry::Context.current)
    end

    # Handles a message inside a consumer's span, which is active meanwhile and is yielded; returns
    # what the block does. The span is linked to the one that sent the message, and is its child
    # unless a span is active already. An error ends it as failed and is raised. Without
    # OpenTelemetry nil is yielded.
    def processing(message)
      return yield(nil) unless defined?(::OpenTelemetry::Trace)

      span = start(message)
      begin
        ::OpenTelemetry::Trace.with_span(span) { yield span }
      rescue StandardError => e
        span.record_exception(e)
        span.set_attribute("error.type", e.class.name)
        span.status = ::OpenTelemetry::Trace::Status.error(e.message)
        raise
      ensure
        span.finish
      end
    end

    def start(message)
      api = ::OpenTelemetry::Trace
      sender = api.current_span(extracted(message, ::OpenTelemetry::Context::ROOT)).context
      active = ::OpenTelemetry::Context.current
      active = extracted(message, active) unless api.current_span(active).context.valid?
      ::OpenTelemetry.tracer_provider.tracer("fila", VERSION).start_span(
        "process #{message.queue}",
        with_parent: active,
        kind: :consumer,
        attributes: attributes(message),
        links: sender.valid? ? [api::Link.new(sender)] : []
      )
    end
    private_class_method :start

    def extracted(message, context)
      propagator = ::OpenTelemetry::Trace::Propagation::TraceContext.text_map_propagator
      propagator.extract(message.headers, context:)
    end
    private_class_method :extracted

    def attributes(message)
      {
        "messaging.system" => "fila",
        "messaging.operation.name" => "process",
        "messaging.operation.type" => "process",
        "messaging.destination.name" => message.queue,
        "messaging.message.id" => message.id,
        "fairness_key" => message.fairness_key
      }
    end
    private_class_method :attributes
  end
end

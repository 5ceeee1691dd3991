# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# W3C trace context of the active span, for message headers and for gRPC metadata.
#
# OpenTelemetry is never required here: a span can only be active where the application has loaded
# the API itself. Who does not trace pays for nothing.
module Fila
  # Reads the active span.
  module Tracing
    TRACEPARENT = "traceparent"
    TRACESTATE = "tracestate"
    NOTHING = {}.freeze
    # The only version of the format that there is.
    VERSION = "00"
    private_constant :VERSION

    module_function

    # `traceparent`, and `tracestate` if there is one, of the recording span; empty without one.
    def current
      return NOTHING unless defined?(::OpenTelemetry::Trace)

      span = ::OpenTelemetry::Trace.current_span
      return NOTHING unless span.recording?

      context = span.context
      flags = context.trace_flags.sampled? ? "01" : "00"
      parent = "#{VERSION}-#{context.hex_trace_id}-#{context.hex_span_id}-#{flags}"
      state = context.tracestate.to_s
      return { TRACEPARENT => parent } if state.empty?

      { TRACEPARENT => parent, TRACESTATE => state }
    end
  end
  private_constant :Tracing
end

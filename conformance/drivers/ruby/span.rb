# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A span that is active because the runner says so.
#
# The SDK reads the active span through the public methods of the OpenTelemetry API gem, if that is
# loaded. This stands in for the gem, with those methods and no others, so that the driver needs
# nothing but the SDK. As in the gem, the active span belongs to the fiber.
module OpenTelemetry
  # Where the gem hands out the active span.
  module Trace
    def self.current_span
      Span.active
    end
  end
end

# What the SDK sees of a span, and of its context.
Span = Struct.new(:hex_trace_id, :hex_span_id, :sampled?, :tracestate, :recording?) do
  # From the W3C form: version, trace id, span id, flags.
  def self.of(traceparent, tracestate)
    _, trace_id, span_id, flags = traceparent.split("-")
    new(trace_id, span_id, flags.to_i(16).anybits?(1), tracestate, true)
  end

  def self.active
    Thread.current[:fila_driver_span] || new
  end

  def self.with(span)
    before = Thread.current[:fila_driver_span]
    Thread.current[:fila_driver_span] = span
    yield
  ensure
    Thread.current[:fila_driver_span] = before
  end

  def context
    self
  end

  def trace_flags
    self
  end
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A stand-in for the OpenTelemetry API gem: the public methods that the SDK reads, and no others.
module StandIn
  Flags = Struct.new(:is_sampled) do
    def sampled?
      is_sampled
    end
  end
  Context = Struct.new(:hex_trace_id, :hex_span_id, :trace_flags, :tracestate)
  Span = Struct.new(:context, :is_recording) do
    def recording?
      is_recording
    end
  end

  # `OpenTelemetry::Trace`, with the active span in a thread-local variable as the real one has it.
  module Trace
    module_function

    def current_span
      Thread.current[:fila_test_span] || Span.new(nil, false)
    end
  end

  module_function

  def with_span(trace_id: "0af7651916cd43dd8448eb211c80319c", span_id: "b7ad6b7169203331",
                sampled: true, tracestate: "", recording: true)
    context = Context.new(trace_id, span_id, Flags.new(sampled), tracestate)
    Thread.current[:fila_test_span] = Span.new(context, recording)
    yield
  ensure
    Thread.current[:fila_test_span] = nil
  end
end

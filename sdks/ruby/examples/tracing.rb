# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# One trace across a queue: the consumer reads the trace context that the producer's span left.
#
# The client adds the trace context of the active span to the message's headers. With the gem
# `opentelemetry-sdk` installed the span is a real one. Without it this example still runs: it then
# defines the few methods of the OpenTelemetry API that the client reads, with a context that it
# makes itself. A real application never does that; it loads the gem, and the client finds it.

require "fila"
require "securerandom"

begin
  require "opentelemetry/sdk"
rescue LoadError
  # The active span, as much of it as the client reads.
  module OpenTelemetry
    Flags = Struct.new(:sampled?)
    Context = Struct.new(:hex_trace_id, :hex_span_id, :trace_flags, :tracestate)
    Span = Struct.new(:context, :recording?)

    # Where the real API keeps the active span too: in a variable of the fiber.
    module Trace
      def self.current_span
        Thread.current[:example_span] || Span.new(nil, false)
      end
    end

    # The part of a tracer that this example uses.
    class Tracer
      def in_span(_name)
        context = Context.new(SecureRandom.hex(16), SecureRandom.hex(8), Flags.new(true), "")
        Thread.current[:example_span] = Span.new(context, true)
        yield Thread.current[:example_span]
      ensure
        Thread.current[:example_span] = nil
      end
    end
  end
end

def tracer
  return OpenTelemetry::Tracer.new unless defined?(OpenTelemetry::SDK)

  OpenTelemetry::SDK::Trace::TracerProvider.new.tracer("fila.examples.tracing")
end

Fila::Client.open(ENV.fetch("FILA_ADDR", "127.0.0.1:5555")) do |client|
  queue = "tracing-#{SecureRandom.hex(4)}"
  client.create_queue(queue)

  sent = tracer.in_span("send #{queue}") do |span|
    client.enqueue(queue, "hello")
    span.context.hex_trace_id
  end

  message = client.receive(queue, wait_ms: 2_000).first
  # version, trace id, span id, flags: with the gem, give these headers to its propagator.
  _, processed, = message.headers.fetch("traceparent").split("-")
  message.ack

  abort "the trace was broken" unless sent == processed
  puts "one trace for both sides: #{processed}"
  client.delete_queue(queue)
end

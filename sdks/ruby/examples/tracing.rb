# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# One trace across a queue: producer, broker, consumer.
#
# The client adds the trace context of the active span to the message's headers and to its calls, so
# that the broker's spans are below it (see `[telemetry]` in the broker's configuration).
# `Fila::Tracing.processing` is the consumer's span. With the gem `opentelemetry-sdk` installed the
# spans are real ones. Without it this example still runs: it then defines the few methods of the
# OpenTelemetry API that the client calls. A real application never does that; it loads the gem, and
# the client finds it.

require "fila"
require "securerandom"

begin
  require "opentelemetry/sdk"
rescue LoadError
  # Spans with an id each, as much of them as the client needs.
  module OpenTelemetry
    Flags = Struct.new(:sampled?)
    Identity = Struct.new(:hex_trace_id, :hex_span_id, :trace_flags, :tracestate, :valid?)
    Span = Struct.new(:context, :recording?) do
      def finish; end
    end
    # A context holds a span here, and nothing else. The active one belongs to the fiber.
    Context = Struct.new(:span)
    Context::ROOT = Context.new(Span.new(Identity.new, false))
    def Context.current
      Thread.current[:example_context] || Context::ROOT
    end

    # The active span, and what reads one from headers.
    module Trace
      Link = Struct.new(:span_context)

      def self.current_span(context = Context.current)
        context.span
      end

      def self.with_span(span)
        Thread.current[:example_context] = Context.new(span)
        yield span
      ensure
        Thread.current[:example_context] = nil
      end

      module Propagation
        # The W3C form: version, trace id, span id, flags.
        module TraceContext
          def self.text_map_propagator
            self
          end

          def self.extract(carrier, context:)
            _, trace, span, flags = carrier["traceparent"]&.split("-")
            return context unless flags

            identity = Identity.new(trace, span, Flags.new(flags == "01"), "", true)
            Context.new(Span.new(identity, false))
          end
        end
      end
    end

    # A tracer, and what gives it out.
    module Tracer
      def self.tracer(_name, _version = nil)
        self
      end

      def self.start_span(_name, with_parent: Context.current, **)
        trace = with_parent.span.context.hex_trace_id || SecureRandom.hex(16)
        Span.new(Identity.new(trace, SecureRandom.hex(8), Flags.new(true), "", true), true)
      end

      def self.in_span(name, &block)
        Trace.with_span(start_span(name), &block)
      end
    end

    def self.tracer_provider
      Tracer
    end
  end
end

OpenTelemetry::SDK.configure if defined?(OpenTelemetry::SDK)
tracer = OpenTelemetry.tracer_provider.tracer("fila.examples.tracing")

Fila::Client.open(ENV.fetch("FILA_ADDR", "127.0.0.1:5555")) do |client|
  queue = "tracing-#{SecureRandom.hex(4)}"
  client.create_queue(queue)

  sent = tracer.in_span("send #{queue}") do |span|
    client.enqueue(queue, "hello")
    span.context.hex_trace_id
  end

  message = client.receive(queue, wait_ms: 2_000).first
  processed = Fila::Tracing.processing(message) do |span|
    message.ack
    span.context.hex_trace_id
  end

  abort "the trace was broken" unless sent == processed
  puts "one trace for both sides: #{processed}"
  client.delete_queue(queue)
end

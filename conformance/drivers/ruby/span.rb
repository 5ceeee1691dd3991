# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A span that is active because the runner says so, and a tracer that keeps what it is told.
#
# The SDK calls the public methods of the OpenTelemetry API gem, if that is loaded. This stands in
# for the gem, with those methods and no others, so that the driver needs nothing but the SDK. As in
# the gem, what is active belongs to the fiber.
module OpenTelemetry
  # What the SDK sees of a span, and of its context.
  Span = Struct.new(:hex_trace_id, :hex_span_id, :sampled?, :tracestate, :recording?) do
    # From the W3C form: version, trace id, span id, flags; nil where that is not one.
    def self.of(traceparent, tracestate, recording: true)
      _, trace_id, span_id, flags = traceparent.to_s.split("-")
      new(trace_id, span_id, flags.to_i(16).anybits?(1), tracestate, recording) if flags
    end

    def context
      self
    end

    def trace_flags
      self
    end

    def valid?
      !hex_trace_id.nil?
    end

    def to_s
      [hex_trace_id, hex_span_id].compact.join("-")
    end

    # A handler's failure, as the SDK tells it.
    attr_writer :status

    def record_exception(_error); end

    def set_attribute(_name, _value); end

    def finish; end
  end

  # A context holds a span here, and nothing else.
  Context = Struct.new(:span)
  Context::ROOT = Context.new(Span.new)

  # Where the gem hands out the active context.
  class << Context
    def current
      Thread.current[:fila_driver_context] || Context::ROOT
    end

    def with_current(context)
      before = Thread.current[:fila_driver_context]
      Thread.current[:fila_driver_context] = context
      yield
    ensure
      Thread.current[:fila_driver_context] = before
    end
  end

  # Where the gem hands out the active span.
  module Trace
    Link = Struct.new(:span_context)
    Status = Struct.new(:description) do
      def self.error(description)
        new(description)
      end
    end

    def self.current_span(context = Context.current)
      context.span
    end

    def self.with_span(span, &block)
      Context.with_current(Context.new(span), &block)
    end

    module Propagation
      # What reads a message's headers.
      module TraceContext
        def self.text_map_propagator
          self
        end

        def self.extract(carrier, context:)
          span = Span.of(carrier["traceparent"], carrier["tracestate"], recording: false)
          span ? Context.new(span) : context
        end
      end
    end
  end

  # The tracer, and what hands it out.
  module Tracer
    class << self
      # What was told about the latest span.
      attr_reader :told

      def tracer(_name, _version)
        self
      end

      def start_span(name, with_parent:, kind:, attributes:, links:)
        links = links.map { |link| link.span_context.to_s }
        @told = { name:, kind:, attributes:, links:, parent: with_parent.span.to_s }
        Span.new
      end
    end
  end

  def self.tracer_provider
    Tracer
  end
end

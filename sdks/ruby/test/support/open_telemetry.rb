# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A stand-in for the OpenTelemetry API gem: the public methods that the SDK calls, and no others,
# with what they mean there. No gem of OpenTelemetry is installed where these tests run.
module StandIn
  Flags = Struct.new(:is_sampled) do
    def sampled?
      is_sampled
    end
  end
  # `OpenTelemetry::Trace::SpanContext`.
  Identity = Struct.new(:hex_trace_id, :hex_span_id, :trace_flags, :tracestate) do
    def valid?
      !hex_trace_id.nil?
    end
  end
  # What a tracer was told about a span, and what happened to it.
  Span = Struct.new(:context, :is_recording, :name, :parent, :kind, :attributes, :links, :status,
                    :exception, :is_finished) do
    def recording?
      is_recording
    end

    def set_attribute(key, value)
      attributes[key] = value
    end

    def record_exception(error)
      self.exception = error
    end

    def finish
      self.is_finished = true
    end
  end
  NO_SPAN = Span.new(Identity.new, false)

  # `OpenTelemetry::Context`: a context holds a span here, and nothing else.
  class Context
    attr_reader :span

    def initialize(span)
      @span = span
    end

    ROOT = new(NO_SPAN)

    def self.current
      Thread.current[:fila_test_context] || ROOT
    end

    def self.with_current(context)
      before = Thread.current[:fila_test_context]
      Thread.current[:fila_test_context] = context
      yield
    ensure
      Thread.current[:fila_test_context] = before
    end
  end

  # `OpenTelemetry::Trace`, with the active context in a thread-local variable as the real one has.
  module Trace
    Link = Struct.new(:span_context)
    Status = Struct.new(:code, :description) do
      def self.error(description)
        new(:error, description)
      end
    end

    module_function

    def current_span(context = Context.current)
      context.span
    end

    def with_span(span, &block)
      Context.with_current(Context.new(span), &block)
    end

    # What reads the W3C form: version, trace id, span id, flags.
    module Propagation
      module TraceContext
        FORM = /\A00-(\h{32})-(\h{16})-(\h{2})\z/

        module_function

        def text_map_propagator
          self
        end

        def extract(carrier, context:)
          match = FORM.match(carrier["traceparent"] || "") or return context
          flags = Flags.new(match[3].to_i(16).anybits?(1))
          identity = Identity.new(match[1], match[2], flags, carrier["tracestate"].to_s)
          Context.new(Span.new(identity, false))
        end
      end
    end
  end

  # `OpenTelemetry.tracer_provider`, which makes tracers that keep their spans.
  module Provider
    module_function

    def spans
      Thread.current[:fila_test_spans] ||= []
    end

    def tracer(name, _version)
      raise ArgumentError, name unless name == "fila"

      self
    end

    def start_span(name, with_parent:, kind:, attributes:, links:)
      parent = with_parent.span.context
      identity = Identity.new(parent.hex_trace_id || ("1" * 32), "2" * 16, Flags.new(true), "")
      Span.new(identity, true, name, parent, kind, attributes, links).tap { |span| spans << span }
    end
  end

  module_function

  def tracer_provider
    Provider
  end

  def with_span(trace_id: "0af7651916cd43dd8448eb211c80319c", span_id: "b7ad6b7169203331",
                sampled: true, tracestate: "", recording: true, &block)
    context = Identity.new(trace_id, span_id, Flags.new(sampled), tracestate)
    Trace.with_span(Span.new(context, recording), &block)
  end
end

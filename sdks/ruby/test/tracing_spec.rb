# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

require_relative "support/open_telemetry"

# The active span's context travels with messages and calls; without a span nothing does. And back:
# a message gives its sender's context, and a span around its handling.
RSpec.describe "Tracing" do
  let(:parent) { "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" }

  def sent
    broker.calls("EnqueueBatch").flat_map { |call| call.request.messages.to_a }
  end

  it "adds nothing where the API is not loaded" do
    hide_const("OpenTelemetry")
    client.enqueue("orders")
    expect(sent.first.headers.to_h).to eq({})
    expect(broker.seen.first.metadata.keys.grep(/trace/)).to eq []
  end

  describe "with the API loaded" do
    before { stub_const("OpenTelemetry", StandIn) }

    it "adds nothing without a span, or with one that does not record" do
      client.enqueue("orders")
      StandIn.with_span(recording: false) { client.enqueue("orders") }
      expect(sent.map { |message| message.headers.to_h }).to eq [{}, {}]
      expect(broker.seen.flat_map { |call| call.metadata.keys.grep(/trace/) }).to eq []
    end

    it "adds the span to the message's headers and the call's metadata" do
      StandIn.with_span { client.enqueue("orders", headers: { "tenant" => "acme" }) }
      expect(sent.first.headers.to_h).to eq("tenant" => "acme", "traceparent" => parent)
      expect(broker.seen.first.metadata).to include("traceparent" => parent)
      expect(broker.seen.first.metadata).not_to include "tracestate"
    end

    it "adds the trace state if there is one" do
      StandIn.with_span(tracestate: "vendor=1", sampled: false) { client.enqueue("orders") }
      unsampled = parent.sub(/01\z/, "00")
      expect(sent.first.headers.to_h)
        .to eq("traceparent" => unsampled, "tracestate" => "vendor=1")
      expect(broker.seen.first.metadata)
        .to include("traceparent" => unsampled, "tracestate" => "vendor=1")
    end

    it "leaves a producer's own trace context in the message" do
      own = { "traceparent" => "00-#{"1" * 32}-#{"2" * 16}-01" }
      StandIn.with_span(tracestate: "vendor=1") { client.enqueue("orders", headers: own) }
      expect(sent.first.headers.to_h).to eq own
      expect(broker.seen.first.metadata).to include("traceparent" => parent)
    end

    it "does not change the caller's headers" do
      headers = { "tenant" => "acme" }.freeze
      StandIn.with_span { client.enqueue("orders", headers:) }
      expect(headers).to eq("tenant" => "acme")
    end

    it "covers many messages, admin calls, receiving and streams" do
      broker.script("Consume") { broker.stream(frame("a")) }
      StandIn.with_span do
        client.enqueue_many(Array.new(2) { Fila::EnqueueMessage.new(queue: "orders") })
        client.list_queues
        client.receive("orders")
        client.consume("orders").first
      end
      expect(broker.seen.map(&:name)).to eq %w[EnqueueBatch ListQueues Receive Consume]
      expect(sent.map { |message| message.headers["traceparent"] }).to eq [parent, parent]
      expect(broker.seen.map { |call| call.metadata["traceparent"] }.uniq).to eq [parent]
    end

    it "gives each message of a shared request its own" do
      gate = Thread::Queue.new
      arrived = Thread::Queue.new
      broker.script("EnqueueBatch") do |request|
        arrived << true
        gate.pop
        broker.store(request)
      end
      held = Array.new(2) do
        in_thread { client.enqueue("orders", "held") }.tap { arrived.pop }
      end
      ids = %w[1 2 3].map { |digit| digit * 32 }
      calls = ids.map do |trace_id|
        in_thread { StandIn.with_span(trace_id:) { client.enqueue("orders", trace_id) } }
      end
      waiting = client.instance_variable_get(:@enqueues).instance_variable_get(:@waiting)
      eventually("three waiting calls") { waiting.length == 3 }
      gate.close
      [*held, *calls].each(&:value)
      shared = broker.calls("EnqueueBatch").last
      expect(shared.request.messages.to_h { |m| [m.payload, m.headers["traceparent"][3, 32]] })
        .to eq(ids.to_h { |id| [id, id] })
      expect(ids).to include shared.metadata["traceparent"][3, 32]
    end
  end

  describe "on the way back" do
    let(:sender) { "00-99998888777766665555444433332222-1111222233334444-01" }
    let(:spans) { StandIn::Provider.spans }

    before do
      stub_const("OpenTelemetry", StandIn)
      spans.clear
    end

    def received(headers = {})
      metadata = Fila::V1::MessageMetadata.new(queue_id: "orders", fairness_key: "acme")
      Fila::Message.new(Fila::V1::Message.new(id: "m-1", headers:, metadata:))
    end

    def traceparent(context)
      flags = context.trace_flags.sampled? ? "01" : "00"
      "00-#{context.hex_trace_id}-#{context.hex_span_id}-#{flags}"
    end

    it "extracts the sender's context from a message" do
      context = Fila::Tracing.extract(received("traceparent" => sender, "tracestate" => "v=1"))
      expect(traceparent(context.span.context)).to eq sender
      expect(context.span.context.tracestate).to eq "v=1"
    end

    it "leaves the current context for a message without one" do
      StandIn.with_span do
        [{}, { "traceparent" => "nonsense" }].each do |headers|
          context = Fila::Tracing.extract(received(headers))
          expect(traceparent(context.span.context)).to eq parent
        end
      end
    end

    it "processes in a consumer's span below the sender" do
      given = Fila::Tracing.processing(received("traceparent" => sender)) do |span|
        expect(StandIn::Trace.current_span).to be span
        expect(span.is_finished).to be_nil
        42
      end
      expect(given).to eq 42
      span = spans.fetch(0)
      expect([span.name, span.kind, span.is_finished]).to eq ["process orders", :consumer, true]
      expect(traceparent(span.parent)).to eq sender
      expect(span.links.map { |link| traceparent(link.span_context) }).to eq [sender]
      expect(span.attributes).to eq(
        "messaging.system" => "fila",
        "messaging.operation.name" => "process",
        "messaging.operation.type" => "process",
        "messaging.destination.name" => "orders",
        "messaging.message.id" => "m-1",
        "fairness_key" => "acme"
      )
      expect(span.status).to be_nil
    end

    it "processes below an active span, linked to the sender" do
      StandIn.with_span { Fila::Tracing.processing(received("traceparent" => sender)) { nil } }
      expect(traceparent(spans.fetch(0).parent)).to eq parent
      expect(spans.fetch(0).links.map { |link| traceparent(link.span_context) }).to eq [sender]
    end

    it "begins a trace for a message without a context" do
      [{}, { "traceparent" => "nonsense" }].each do |headers|
        Fila::Tracing.processing(received(headers)) { nil }
        expect(spans.last.parent.valid?).to be false
        expect(spans.last.links).to eq []
      end
    end

    it "says that processing failed, and raises" do
      expect { Fila::Tracing.processing(received) { raise KeyError, "no" } }
        .to raise_error(KeyError)
      span = spans.fetch(0)
      expect([span.status.code, span.exception.class, span.is_finished])
        .to eq [:error, KeyError, true]
      expect(span.attributes["error.type"]).to eq "KeyError"
    end

    it "just runs where the API is not loaded" do
      hide_const("OpenTelemetry")
      expect(Fila::Tracing.processing(received) { |span| [span, 42] }).to eq [nil, 42]
      expect(Fila::Tracing.extract(received)).to be_nil
    end
  end
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

require_relative "support/open_telemetry"

# The active span's context travels with messages and calls; without a span nothing does.
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
    before { stub_const("OpenTelemetry::Trace", StandIn::Trace) }

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
      held = Array.new(2) { in_thread { client.enqueue("orders", "held") } }
      2.times { arrived.pop }
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
end

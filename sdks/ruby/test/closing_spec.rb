# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What was promised is answered before a client ends, within bounds; and it is not too much.
RSpec.describe "What waits" do
  let(:gate) { Gate.new }

  after { gate.open }

  def hold(method = "EnqueueBatch")
    answer = broker.scripted(method)
    broker.script(method) do |request|
      gate.pass
      answer.call(request)
    end
  end

  def unanswered(of_client = client)
    outbox = of_client.instance_variable_get(:@connection).outbox
    outbox.instance_variable_get(:@calls)
  end

  def outcome
    in_thread do
      yield
    rescue Fila::Error => e
      e
    end
  end

  describe "when it is flushed" do
    it "is waited for, whatever the answer" do
      hold("AckBatch")
      broker.script("AckBatch") do |_|
        gate.pass
        refuse(:INTERNAL, "broken")
      end
      call = outcome { client.ack("orders", "m") }
      gate.wait_for_requests(1)
      flush = in_thread { client.flush }
      expect(flush.join(0.1)).to be_nil
      gate.open
      expect(flush.value).to be_nil
      expect(call.value).to be_a Fila::InternalError
    end

    it "is waited for only so long" do
      hold
      call = in_thread { client.enqueue("orders", "x") }
      gate.wait_for_requests(1)
      expect { client.flush(timeout: 0.05) }.to raise_error(Fila::DeadlineExceededError, /answered/)
      gate.open
      expect(call.value).to start_with "x#"
    end

    it "is not waited for if it began later" do
      later = Thread::Queue.new
      broker.script("EnqueueBatch") do |request|
        request.messages[0].payload == "later" ? later.pop : gate.pass
        broker.store(request)
      end
      first = in_thread { client.enqueue("orders", "first") }
      gate.wait_for_requests(1)
      flush = in_thread { client.flush }
      eventually("a flush that waits") { flush.status == "sleep" }
      second = in_thread { client.enqueue("orders", "later") }
      eventually("two requests") { broker.seen.length == 2 }
      gate.open
      flush.value
      expect(second).to be_alive
      later.close
      expect([first.value, second.value]).to match [/^first/, /^later/]
    end

    it "may be nothing, but not of a client that is closed" do
      expect(client.flush).to be_nil
      client.close
      expect { client.flush }.to raise_error(Fila::ClientClosedError)
    end

    it "counts calls of many messages and calls that are sent again" do
      refused = Thread::Queue.new
      broker.script("EnqueueBatch") do |request|
        if broker.seen.length == 1
          refused << true
          refuse(:UNAVAILABLE, "away")
        end
        gate.pass
        broker.store(request)
      end
      client = open_client(backoff: Support::QUICK)
      message = Fila::EnqueueMessage.new(queue: "orders", payload: "x", idempotency_key: "k")
      call = in_thread { client.enqueue_many([message]) }
      refused.pop
      flush = in_thread { client.flush }
      gate.wait_for_requests(1)
      expect(flush).to be_alive
      gate.open
      flush.value
      expect(call.value.first.unwrap).to start_with "x#"
    end

    it "is forgotten when its caller is interrupted" do
      hold
      call = in_thread { client.enqueue("orders", "x") }
      gate.wait_for_requests(1)
      call.raise(Interrupt)
      expect { call.value }.to raise_error(Interrupt)
      expect(client.flush).to be_nil
      expect(unanswered).to be_empty
    end
  end

  describe "when the client is closed" do
    it "is answered, while new calls are refused" do
      hold
      client = open_client(timeout: 600, close_timeout: 600)
      calls = Array.new(5) { |n| in_thread { client.enqueue("orders", n.to_s) } }
      gate.wait_for_requests(1)
      eventually("five calls") { unanswered(client).size == 5 }
      closing = in_thread { client.close }
      eventually("a refusal") do
        outcome { client.enqueue("late", timeout: 0.1) }.value.is_a?(Fila::ClientClosedError)
      end
      { "ack" => -> { client.ack("orders", "m") }, "list" => -> { client.list_queues },
        "receive" => -> { client.receive("orders") }, "consume" => -> { client.consume("orders") },
        "many" => -> { client.enqueue_many([]) } }.each_value do |call|
        expect(&call).to raise_error(Fila::ClientClosedError)
      end
      expect(closing).to be_alive
      gate.open
      closing.value
      expect(calls.map { |call| call.value[/.*(?=#)/] }.sort).to eq %w[0 1 2 3 4]
    end

    it "is sent again meanwhile, if that is safe" do
      broker.script("AckBatch") do |request|
        if broker.calls("AckBatch").length == 1
          gate.pass
          refuse(:UNAVAILABLE, "away")
        end
        broker.settle(request)
      end
      client = open_client(backoff: Support::QUICK)
      call = in_thread { client.ack("orders", "m", lease_token: "t") }
      gate.wait_for_requests(1)
      closing = in_thread { client.close }
      eventually("a closing client") { outcome { client.list_queues }.value.is_a?(StandardError) }
      gate.open
      closing.value
      expect(call.value).to be_nil
      expect(broker.calls("AckBatch").length).to eq 2
    end

    [0, 0.2].each do |close_timeout|
      it "is cut off after a close timeout of #{close_timeout} s" do
        hold
        client = open_client(close_timeout:, timeout: 600)
        calls = Array.new(5) { outcome { client.enqueue("orders") } }
        gate.wait_for_requests(1)
        eventually("five calls") { unanswered(client).size == 5 }
        client.close
        expect(calls.map { |call| call.value.class }.uniq).to eq [Fila::ClientClosedError]
        expect(client.close).to be_nil
      end
    end

    it "does not hold up who waits for something else" do
      broker.script("Receive") do
        gate.pass
        Fila::V1::ReceiveResponse.new
      end
      client = open_client(close_timeout: 600)
      call = outcome { client.receive("orders", wait_ms: 600_000) }
      gate.wait_for_requests(1)
      client.close
      expect(call.value).to be_a Fila::ClientClosedError
    end
  end

  describe "for a broker that is slower than its producers" do
    let(:client) { open_client(max_buffered_bytes: 1000, timeout: 30) }

    it "is bounded: who comes later waits before it is encoded" do
      hold
      calls = Array.new(2) { in_thread { client.enqueue("orders", "x" * 600) } }
      eventually("two calls") { unanswered.size == 2 && unanswered.values.min > 600 }
      expect(Fila.const_get(:Wire)).not_to receive(:enqueue_item)
      [-> { client.enqueue("orders", "y", timeout: 0.5) },
       -> { client.enqueue("orders", 5, timeout: 0.5) },
       -> { client.ack("orders", "m", timeout: 0.5) }].each do |call|
        expect(&call).to raise_error(Fila::DeadlineExceededError, /not sent/)
      end
      gate.open
      calls.each(&:value)
      expect(broker.seen.map(&:name).uniq).to eq ["EnqueueBatch"]
    end

    it "goes out as soon as there is room, however large" do
      hold
      calls = Array.new(6) { |n| in_thread { client.enqueue("orders", n.to_s * 5000) } }
      eventually("calls that wait") do
        calls.all? { |call| call.status == "sleep" } && unanswered.size == 1
      end
      gate.open
      expect(calls.map { |call| call.value[0] }).to eq %w[0 1 2 3 4 5]
      expect(client.instance_variable_get(:@connection).outbox.instance_variable_get(:@bytes))
        .to eq 0
    end

    it "keeps its count when a call cannot be encoded, or is interrupted" do
      outbox = client.instance_variable_get(:@connection).outbox
      expect { client.enqueue("orders", "x" * 900, headers: 5) }.to raise_error(TypeError)
      hold
      call = in_thread { client.enqueue("orders", "x" * 2000) }
      gate.wait_for_requests(1)
      waiting = in_thread { client.enqueue("orders", "y") }
      eventually("a call that waits") { waiting.status == "sleep" }
      waiting.raise(Interrupt)
      expect { waiting.value }.to raise_error(Interrupt)
      gate.open
      call.value
      expect(outbox.instance_variable_get(:@bytes)).to eq 0
      expect(unanswered).to be_empty
    end

    it "ends with the client" do
      hold
      client = open_client(max_buffered_bytes: 10, close_timeout: 0, timeout: 600)
      calls = Array.new(3) { outcome { client.enqueue("orders", "x" * 20) } }
      gate.wait_for_requests(1)
      eventually("calls that wait") { calls.all? { |call| call.status == "sleep" } }
      client.close
      expect(calls.map { |call| call.value.class }.uniq).to eq [Fila::ClientClosedError]
    end
  end
end

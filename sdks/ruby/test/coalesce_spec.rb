# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Concurrent calls share requests, each caller gets its own answer, and nobody waits for others.
RSpec.describe "Coalescing" do
  let(:slots) { Fila.const_get(:Coalescer)::REQUESTS_UNDER_WAY_MAX }
  let(:gate) { Gate.new }

  after { gate.open }

  def hold(method)
    answer = broker.scripted(method)
    broker.script(method) do |request|
      gate.pass
      answer.call(request)
    end
  end

  # Occupies every slot with a request that waits at the gate, one after the other.
  def fill_slots(method = "EnqueueBatch", &call)
    call ||= ->(_) { client.enqueue("orders", "first") }
    hold(method)
    Array.new(slots) do |number|
      in_thread { call.call("held-#{number}") }.tap { gate.wait_for_requests(1) }
    end
  end

  def coalescer(name = :@enqueues)
    client.instance_variable_get(name)
  end

  def wait_for_waiting(count, name = :@enqueues)
    waiting = coalescer(name).instance_variable_get(:@waiting)
    eventually("#{count} waiting calls") { waiting.length == count }
  end

  def sizes(method = "EnqueueBatch", field = "messages")
    broker.calls(method).map { |call| call.request[field].length }
  end

  it "sends a lone call at once and alone" do
    5.times { expect(client.enqueue("orders", "x")).to start_with "x#" }
    expect(sizes).to eq [1] * 5
  end

  it "lets calls that pile up share the next request" do
    held = fill_slots
    calls = Array.new(30) { |n| in_thread { client.enqueue("orders", "caller-#{n}") } }
    wait_for_waiting(30)
    gate.open
    expect(calls.map { |call| call.value[/.*(?=#)/] }).to eq((0...30).map { |n| "caller-#{n}" })
    held.each(&:value)
    expect(sizes).to eq ([1] * slots) + [30]
  end

  it "needs fewer requests than there are calls" do
    answer = broker.scripted("EnqueueBatch")
    broker.script("EnqueueBatch") do |request|
      sleep 0.02
      answer.call(request)
    end
    ids = Array.new(32) { |n| in_thread { Array.new(5) { client.enqueue("orders", n.to_s) } } }
    ids.each_with_index do |call, n|
      expect(call.value.map { |id| id[/.*(?=#)/] }.uniq).to eq [n.to_s]
    end
    expect(sizes.sum).to eq 160
    expect(sizes.length).to be < 140
  end

  [
    ["AckBatch", "acks", :@acks, ->(client, id) { client.ack("orders", id) }],
    ["NackBatch", "nacks", :@nacks, ->(client, id) { client.nack("orders", id) }],
    ["ExtendLease", "extensions", :@extensions,
     ->(client, id) { client.extend_lease("orders", id) }]
  ].each do |method, field, name, call|
    it "shares #{method} requests too" do
      broker.script("ExtendLease") do |request|
        lease_expires_at = Google::Protobuf::Timestamp.new(seconds: 1)
        results = request.extensions.map { Fila::V1::ExtendLeaseResult.new(lease_expires_at:) }
        Fila::V1::ExtendLeaseResponse.new(results:)
      end
      calls = fill_slots(method) { |id| call.call(client, id) }
      calls += Array.new(10) { |n| in_thread { call.call(client, "m-#{n}") } }
      wait_for_waiting(10, name)
      gate.open
      calls.each(&:value)
      expect(sizes(method, field)).to eq ([1] * slots) + [10]
    end
  end

  it "gives an item's error to its caller alone" do
    broker.script("EnqueueBatch") do |request|
      results = request.messages.map do |message|
        error = item_error("QUEUE_FULL", "queue is full") if message.payload == "bad"
        Fila::V1::EnqueueResult.new(message_id: message.payload, error:)
      end
      Fila::V1::EnqueueBatchResponse.new(results:)
    end
    fill_slots
    calls = %w[a b bad c].to_h { |name| [name, in_thread { client.enqueue("orders", name) }] }
    wait_for_waiting(4)
    gate.open
    expect { calls["bad"].value }.to raise_error(Fila::QueueFullError, "queue is full") { |error|
      expect([error.queue, error.code, error.reason]).to eq %w[orders RESOURCE_EXHAUSTED QUEUE_FULL]
    }
    expect(%w[a b c].map { |name| calls[name].value }).to eq %w[a b c]
  end

  it "gives every caller of a failed request an error of its own" do
    broker.script("EnqueueBatch") { refuse(:RESOURCE_EXHAUSTED, "too much") }
    fill_slots
    calls = Array.new(8) do |n|
      in_thread do
        client.enqueue("queue-#{n}")
      rescue Fila::Error => e
        e
      end
    end
    wait_for_waiting(8)
    gate.open
    errors = calls.map(&:value)
    expect(errors.map(&:class).uniq).to eq [Fila::ResourceExhaustedError]
    expect(errors.map(&:queue)).to eq((0...8).map { |n| "queue-#{n}" })
    expect(errors.map(&:object_id).uniq.length).to eq 8
    expect(errors.map(&:cause)).to all(be_a(GRPC::ResourceExhausted))
  end

  it "keeps a short timeout while calls wait, and sends nothing for who left" do
    held = fill_slots
    patient = Array.new(3) { in_thread { client.enqueue("orders", "patient") } }
    wait_for_waiting(3)
    expect { client.enqueue("orders", "hasty", timeout: 1) }
      .to raise_error(Fila::DeadlineExceededError, /was not sent/)
    gate.open
    expect(patient.map(&:value)).to all(start_with("patient"))
    held.each(&:value)
    expect(sizes).to eq ([1] * slots) + [3]
  end

  it "lets a caller leave a request under way at its own deadline" do
    fill_slots
    second = Gate.new
    broker.script("EnqueueBatch") do |request|
      second.pass
      broker.store(request)
    end
    patient = in_thread { client.enqueue("orders", "patient", timeout: 30) }
    hasty = in_thread { client.enqueue("orders", "hasty", timeout: 3) }
    wait_for_waiting(2)
    gate.open
    expect { hasty.value }.to raise_error(Fila::DeadlineExceededError, /unknown/)
    # The request has the deadline of the most patient caller, so the others are not cut off.
    shared = broker.calls("EnqueueBatch").last
    expect(shared.request.messages.length).to eq 2
    expect(shared.seconds_left).to be_between(15, 30.2)
    second.open
    expect(patient.value).to start_with "patient"
  end

  it "leaves the others alone when a caller of a request under way is interrupted" do
    fill_slots
    second = Gate.new
    broker.script("EnqueueBatch") do |request|
      second.pass
      broker.store(request)
    end
    calls = Array.new(5) { |n| in_thread { client.enqueue("orders", n.to_s) } }
    wait_for_waiting(5)
    gate.open
    second.wait_for_requests(1)
    # The first of them is the one whose thread another design would have sent the request from.
    calls.first.raise(Interrupt)
    calls.last.kill
    expect { calls.first.value }.to raise_error(Interrupt)
    expect(calls.last.value).to be_nil
    second.open
    expect(calls[1..3].map { |call| call.value[/.*(?=#)/] }).to eq %w[1 2 3]
  end

  it "sends nothing for a caller that was interrupted before" do
    fill_slots
    calls = Array.new(3) { |n| in_thread { client.enqueue("orders", n.to_s) } }
    wait_for_waiting(3)
    calls[1].raise(Interrupt)
    expect { calls[1].value }.to raise_error(Interrupt)
    gate.open
    expect([calls[0], calls[2]].map { |call| call.value[/.*(?=#)/] }).to eq %w[0 2]
    expect(sizes).to eq ([1] * slots) + [2]
  end

  it "loses no slot to interrupted callers" do
    broker.script("EnqueueBatch") do |request|
      sleep 0.01
      broker.store(request)
    end
    random = Random.new(1)
    100.times do
      call = in_thread { client.enqueue("orders", "x") }
      sleep random.rand * 0.01
      call.raise(Interrupt)
      call.join
    rescue Interrupt
      nil # raised in the call, unless that was done before
    end
    eventually("free slots") { coalescer.instance_variable_get(:@slots).empty? }
    expect(client.enqueue("orders", "x")).to start_with "x#"
  end

  it "loses no slot to what a trap raises, wherever it does" do
    interruption = Class.new(StandardError)
    paths = { Coalescer: :submit, Outbox: :promise }.map do |name, method|
      Fila.const_get(name).instance_method(method).source_location.first
    end
    outbox = client.instance_variable_get(:@connection).outbox
    # A trap runs on the main thread between two steps of it, which is where a tracer stands.
    interrupted_at = lambda do |number, &block|
      steps = 0
      tracer = TracePoint.new(:line, :call, :c_return, :return) do |point|
        next unless paths.include?(point.path)
        next if Thread.current != Thread.main || (steps += 1) != number

        tracer.disable
        raise interruption
      end
      tracer.enable(&block)
      :done
    rescue interruption
      :interrupted
    end
    interrupted = (1..).take_while do |number|
      answer = interrupted_at.call(number) { client.enqueue("orders", "x") }
      eventually("free slots") { coalescer.instance_variable_get(:@slots).empty? }
      expect(outbox.instance_variable_get(:@bytes)).to eq 0
      expect(outbox.flush(0)).to be true
      answer == :interrupted
    end
    expect(interrupted.length).to be > 20
    expect(client.enqueue("orders", "x")).to start_with "x#"
  end

  it "hands a slot on that its caller left before it was served" do
    first, second = Array.new(2) do |n|
      item = Fila.const_get(:Wire)::Item.new("x", "orders", "m-#{n}")
      answer = Fila.const_get(:Answer).new
      Fila.const_get(:Coalescer)::Seat.new(item, 0, {}, answer, false, false)
    end
    served = Thread::Queue.new
    coalescer.define_singleton_method(:serve) { |seat| served << seat }
    coalescer.instance_variable_get(:@waiting).push(first, second)
    coalescer.instance_variable_get(:@slots)[first] = :promised
    coalescer.send(:leave, first)
    expect(served.pop).to be second
    expect(coalescer.instance_variable_get(:@slots).to_a).to eq [[second, :promised]]
  end

  describe "the next batch" do
    let(:limit) { Fila.const_get(:Wire)::BATCH_BYTES_MAX }
    let(:items) { Fila.const_get(:Wire)::BATCH_ITEMS_MAX }

    def seat(size, is_gone: false)
      item = Fila.const_get(:Wire)::Item.new("x" * size, "orders")
      Fila.const_get(:Coalescer)::Seat.new(item, 0, {}, nil, is_gone, false)
    end

    def take(waiting)
      Fila.const_get(:Coalescer).take(waiting).map { |found| found.item.data.bytesize }
    end

    it "stays within its limits and skips who left" do
      waiting = [seat(1, is_gone: true), seat(limit - 10), seat(11, is_gone: true), seat(10),
                 seat(1)]
      expect(take(waiting)).to eq [limit - 10, 10]
      expect(take(waiting)).to eq [1]
      expect(take(waiting)).to eq []
    end

    it "holds a message that is larger than any batch alone" do
      waiting = [seat(limit + 1), seat(1)]
      expect([take(waiting), take(waiting)]).to eq [[limit + 1], [1]]
    end

    it "holds a bounded number of messages" do
      waiting = Array.new(items + 1) { seat(1) }
      expect([take(waiting).length, take(waiting).length]).to eq [items, 1]
    end
  end
end

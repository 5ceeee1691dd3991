# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A consumer hands out what it was sent, outlives its connection, and ends when it is told to.
RSpec.describe Fila::Consumer do
  let(:ended) { Thread::Queue.new }

  def wait_for_end
    eventually("the end of the stream") { !ended.empty? }
  end

  it "hands out messages in order across frames" do
    broker.script("Consume") { broker.stream(frame("a", "b"), frame("c")) }
    consumer = client.consume("orders", max_in_flight: 7, batch_size: 3, visibility_timeout_ms: 9)
    expect(consumer.first(3).map(&:id)).to eq %w[a b c]
    expect(broker.calls("Consume").map(&:request)).to eq [
      Fila::V1::ConsumeRequest.new(
        queue: "orders", max_in_flight: 7, max_batch: 3, visibility_timeout_ms: 9
      )
    ]
  end

  it "asks for frames and a bounded prefetch by default" do
    broker.script("Consume") { broker.stream(frame("a")) }
    client.consume("orders") { break }
    expect(broker.calls("Consume").map(&:request)).to eq [
      Fila::V1::ConsumeRequest.new(queue: "orders", max_in_flight: 64, max_batch: 32)
    ]
  end

  it "reads frames as they come" do
    broker.script("Consume") { broker.stream(frame("a", "b"), frame("c"), frame("d")) }
    consumer = client.consume("orders")
    expect(consumer.first.id).to eq "a"
    unread = consumer.instance_variable_get(:@feed).instance_variable_get(:@unread)
    eventually("three messages that wait") { unread.length == 3 }
    expect(consumer.first(3).map(&:id)).to eq %w[b c d]
  end

  it "yields messages to a block and returns what breaks out of it" do
    broker.script("Consume") { broker.stream(frame("a", "b"), ended:) }
    found = client.consume("orders") { |message| break message.id }
    expect(found).to eq "a"
    wait_for_end
    # Nobody has seen the other, so it need not wait for its lease to end.
    expect(released(broker)).to eq ["b"]
  end

  it "closes the stream when the block raises" do
    broker.script("Consume") { broker.stream(frame("a", "b"), ended:) }
    expect { client.consume("orders") { raise KeyError } }.to raise_error(KeyError)
    wait_for_end
    expect(released(broker)).to eq ["b"]
  end

  it "is enumerable and goes on where the last iteration stopped" do
    broker.script("Consume") { broker.stream(frame("a", "b", "c"), frame("d")) }
    consumer = client.consume("orders")
    expect(consumer.first.id).to eq "a"
    expect(consumer.lazy.map(&:id).first(2)).to eq %w[b c]
    expect(consumer.each.next.id).to eq "d"
  end

  it "hands out batches of what is there" do
    broker.script("Consume") { broker.stream(frame("a", "b", "c"), frame("d")) }
    consumer = client.consume("orders")
    expect(consumer.pop.id).to eq "a"
    unread = consumer.instance_variable_get(:@feed).instance_variable_get(:@unread)
    eventually("three messages that wait") { unread.length == 3 }
    batches = consumer.batches(2)
    expect([batches.next, batches.next].map { |batch| batch.map(&:id) }).to eq [%w[b c], %w[d]]
    expect { consumer.batches(0) }.to raise_error(ArgumentError, "max must be positive, got 0")
  end

  it "ends batches when it is closed" do
    broker.script("Consume") { broker.stream(frame("a"), ended:) }
    consumer = client.consume("orders")
    seen = []
    consumer.batches(5) do |batch|
      seen.concat(batch.map(&:id))
      consumer.close
    end
    expect(seen).to eq ["a"]
  end

  it "waits for a message as long as it is told" do
    go = Thread::Queue.new
    broker.script("Consume") do
      Enumerator.new do |out|
        go.pop
        broker.stream(frame("a")).each { |sent| out << sent }
      end
    end
    consumer = client.consume("orders")
    expect(consumer.pop(timeout: 0)).to be_nil
    expect(consumer.pop(timeout: 0.05)).to be_nil
    go << true
    expect(consumer.pop(timeout: 10).id).to eq "a"
    expect(consumer).not_to be_closed
  end

  it "serves several threads" do
    broker.script("Consume") { broker.stream(*(1..10).map { |n| frame("#{n}-a", "#{n}-b") }) }
    consumer = client.consume("orders")
    found = Thread::Queue.new
    readers = Array.new(4) { in_thread { consumer.each { |message| found << message.id } } }
    eventually("twenty messages") { found.length == 20 }
    consumer.close
    readers.each(&:join)
    expect(Array.new(20) { found.pop }.uniq.length).to eq 20
  end

  it "settles a message by its delivery" do
    broker.script("ExtendLease") do
      lease_expires_at = Google::Protobuf::Timestamp.new(seconds: 1_900_000_000)
      result = Fila::V1::ExtendLeaseResult.new(lease_expires_at:)
      Fila::V1::ExtendLeaseResponse.new(results: [result])
    end
    broker.script("Consume") { broker.stream(frame("a", "b")) }
    first, second = client.consume("orders").first(2)
    expect(first.extend_lease(5000)).to eq Time.at(1_900_000_000)
    expect(first.lease_expires_at).to eq Time.at(1_900_000_000)
    first.ack
    second.nack("boom", retry_after_ms: 10, throttle_key: "mail", dead_letter: true)
    expect(broker.calls("ExtendLease").first.request.extensions.to_a).to eq [
      Fila::V1::LeaseExtension.new(
        queue: "orders", message_id: "a", lease_token: "token-of-a", extend_ms: 5000
      )
    ]
    expect(broker.calls("AckBatch").first.request.acks.to_a).to eq [
      Fila::V1::AckRequest.new(queue: "orders", message_id: "a", lease_token: "token-of-a")
    ]
    expect(broker.calls("NackBatch").first.request.nacks.to_a).to eq [
      Fila::V1::NackRequest.new(queue: "orders", message_id: "b", error: "boom",
                                lease_token: "token-of-b", retry_after_ms: 10, throttle_key: "mail",
                                dead_letter: true)
    ]
  end

  it "raises for an unknown queue at the first message, and again" do
    broker.script("Consume") { refuse(:NOT_FOUND, "no queue", "QUEUE_NOT_FOUND") }
    consumer = client.consume("nowhere")
    2.times do
      expect { consumer.first }.to raise_error(Fila::QueueNotFoundError, "no queue") { |error|
        expect(error.queue).to eq "nowhere"
        expect(error.cause).to be_a GRPC::NotFound
      }
    end
    expect(broker.seen.length).to eq 1
  end

  it "raises an error in the middle after the messages before it" do
    broker.script("Consume") do
      Enumerator.new do |out|
        out << frame("a", "b")
        refuse(:PERMISSION_DENIED, "revoked", "PERMISSION_DENIED")
      end
    end
    consumer = client.consume("orders")
    expect(consumer.first(2).map(&:id)).to eq %w[a b]
    expect { consumer.pop }.to raise_error(Fila::PermissionDeniedError)
  end

  {
    "ends cleanly" => -> {},
    "is unavailable" => -> { refuse(:UNAVAILABLE, "reset") },
    "shuts down" => -> { refuse(:UNAVAILABLE, "bye", "SHUTTING_DOWN") },
    "cancels" => -> { refuse(:CANCELLED, "the server is stopping") }
  }.each do |how, ending|
    it "opens a new stream when the old one #{how}" do
      broker.script("Consume") do
        number = broker.calls("Consume").length
        Enumerator.new do |out|
          out << frame("m-#{number}")
          broker.stream.each { |sent| out << sent } if number == 3
          instance_exec(&ending)
        end
      end
      client = open_client(backoff: Support::QUICK)
      expect(client.consume("orders").first(3).map(&:id)).to eq %w[m-1 m-2 m-3]
      expect(@log.string.scan(/queue "orders" was lost, reconnecting/).length).to eq 2
    end
  end

  it "says once that its stream was lost, and once that it is there again" do
    go = Thread::Queue.new
    broker.script("Consume") do
      refuse(:UNAVAILABLE, "away") if broker.calls("Consume").length < 4
      # Open, but with nothing to say: the client learns that from nothing but time.
      Enumerator.new { |_| go.pop }
    end
    stub_const("Fila::Feed::WORKS_S", 0.05)
    client = open_client(backoff: Support::QUICK)
    reader = in_thread { client.consume("orders").pop }
    eventually("a stream") { @log.string.include?('"orders" is there again') }
    expect(@log.string.scan(/ WARN .*was lost, reconnecting: (.*)/)).to eq [["away"]]
    expect(@log.string.scan("is there again").length).to eq 1
    client.close
    expect(reader.value).to be_nil
  ensure
    go.close
  end

  it "survives a restart of the broker" do
    first = start_broker(port: free_port)
    first.script("Consume") { first.stream(frame("before")) }
    client = open_client(first.target, backoff: Support::QUICK)
    consumer = client.consume("orders")
    expect(consumer.first.id).to eq "before"
    reader = in_thread { consumer.first }
    first.stop
    eventually("a lost stream") { @log.string.include?("was lost") }
    start_broker(port: first.port) do |second|
      second.script("Consume") { second.stream(frame("after")) }
    end
    expect(reader.value.id).to eq "after"
    expect(client.enqueue("orders", "x")).to start_with "x#"
  end

  it "may be opened before the broker" do
    port = free_port
    consumer = open_client("127.0.0.1:#{port}", backoff: Support::QUICK).consume("orders")
    expect(consumer.pop(timeout: 0.2)).to be_nil
    start_broker(port:) do |late|
      late.script("Consume") { late.stream(frame("a")) }
    end
    expect(consumer.first.id).to eq "a"
  end

  it "never tries again without a wait" do
    broker.script("Consume") { refuse(:UNAVAILABLE, "away") }
    client = open_client(backoff: Fila::Backoff.new(initial: 0.1, maximum: 0.2))
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    consumer = client.consume("orders")
    consumer.pop(timeout: 1.5)
    eventually("an attempt") { broker.calls("Consume").any? }
    # Waits are between 0 and 0.2 s, 0.1 s on average: some 10 in a second, never hundreds.
    attempts = broker.calls("Consume").length
    expect(attempts).to be < 40 * (Process.clock_gettime(Process::CLOCK_MONOTONIC) - started)
  end

  it "is ended by close while a thread waits in it" do
    broker.script("Consume") { broker.stream(frame("a"), ended:) }
    consumer = client.consume("orders")
    consumer.first
    reader = in_thread { consumer.to_a }
    sleep 0.05
    consumer.close
    expect(reader.value).to eq []
    expect(consumer).to be_closed
    wait_for_end
    consumer.close
    expect(consumer.pop).to be_nil
  end

  it "is ended by close while it waits to reconnect" do
    backoff = Fila::Backoff.new(initial: 300, maximum: 600)
    client = open_client("127.0.0.1:#{free_port}", backoff:)
    consumer = client.consume("orders")
    reader = in_thread { consumer.to_a }
    eventually("a lost stream") { @log.string.include?("was lost") }
    consumer.close
    expect(reader.value).to eq []
  end

  it "ends without an error when the client is closed" do
    broker.script("Consume") { broker.stream(frame("a")) }
    consumers = [client.consume("orders"), client.consume("invoices")]
    readers = consumers.map do |consumer|
      consumer.first
      in_thread { consumer.to_a }
    end
    unused = client.consume("orders")
    client.close
    expect(readers.map(&:value)).to eq [[], []]
    expect(unused.to_a).to eq []
  end

  it "is closed with all the others at once, when the client is closed" do
    broker.script("Consume") { broker.stream(frame("a", "b")) }
    # As slow as closing may be. One after the other the next would never begin.
    arrived = Thread::Queue.new
    go = Thread::Queue.new
    broker.script("NackBatch") do |request|
      arrived << true
      go.pop
      broker.settle(request)
    end
    client = open_client(timeout: 600)
    stub_const("Fila::Feed::RELEASE_TIMEOUT_S", 600)
    3.times { |n| client.consume("queue-#{n}").first }
    closing = in_thread { client.close }
    3.times { arrived.pop }
    go.close
    closing.join
  end

  %w[consumer client].each do |what|
    it "is closed in a signal handler, by the #{what}" do
      broker.script("Consume") { broker.stream(frame("a", "b")) }
      consumer = client.consume("orders")
      consumer.first
      before = trap("USR2") { { "consumer" => consumer, "client" => client }.fetch(what).close }
      Process.kill("USR2", Process.pid)
      expect(consumer.to_a).to all(have_attributes(id: "b"))
      eventually("a closed consumer") { consumer.closed? }
    ensure
      trap("USR2", before || "DEFAULT")
    end
  end

  it "gives back frames that were sent and never read" do
    broker.script("Consume") { broker.stream(frame("a", "b"), frame("c"), frame("d"), ended:) }
    # As long as a loaded machine may need to wake a thread.
    stub_const("Fila::Feed::QUIET_S", 2.0)
    stub_const("Fila::Feed::DRAIN_S", 2.0)
    consumer = client.consume("orders")
    consumer.first
    consumer.close
    wait_for_end
    expect(released(broker)).to eq %w[b c d]
  end

  it "closes although messages cannot be given back" do
    broker.script("Consume") { broker.stream(frame("a", "b")) }
    broker.script("NackBatch") { refuse(:INTERNAL, "broken") }
    client.consume("orders") { break }
    expect(released(broker)).to eq ["b"]
    expect(@log.string).to include "messages not given back"
  end

  it "ends its stream when the application drops it" do
    broker.script("Consume") { broker.stream(frame("a", "b"), ended:) }
    # In threads, whose stacks hold nothing afterwards. Ruby's collector is conservative, so one of
    # ten is enough.
    Array.new(10) { in_thread { client.consume("orders").first.id } }.each(&:join)
    eventually("a collected consumer") do
      GC.start
      released(broker).any?
    end
  end

  it "survives being interrupted" do
    go = Thread::Queue.new
    broker.script("Consume") do
      Enumerator.new do |out|
        go.pop
        broker.stream(frame("a")).each { |sent| out << sent }
      end
    end
    consumer = client.consume("orders")
    expect { Timeout.timeout(0.1) { consumer.first } }.to raise_error(Timeout::Error)
    go << true
    expect(consumer.first.id).to eq "a"
  end

  it "receives what there is and waits longer than the broker" do
    options = { max_messages: 5, wait_ms: 120_000, visibility_timeout_ms: 7 }
    expect(client.receive("orders", **options, timeout: 60)).to eq []
    call = broker.seen.first
    expect(call.request).to eq Fila::V1::ReceiveRequest.new(queue: "orders", **options)
    expect(call.seconds_left).to be_between(150, 182)
  end

  it "settles many messages with one outcome each" do
    broker.script("Receive") { receive_response("a", "b", "c") }
    broker.script("AckBatch") do |request|
      results = request.acks.map do |ack|
        error = item_error("LEASE_EXPIRED", "too late") if ack.message_id == "b"
        Fila::V1::ItemResult.new(error:)
      end
      Fila::V1::AckBatchResponse.new(results:)
    end
    messages = client.receive("orders", max_messages: 3)
    outcomes = client.ack_many(messages)
    expect(outcomes.map(&:class)).to eq [NilClass, Fila::LeaseExpiredError, NilClass]
    expect([outcomes[1].queue, outcomes[1].message_id]).to eq %w[orders b]
    expect(client.nack_many(messages, "boom")).to eq [nil, nil, nil]
    nacks = broker.calls("NackBatch").first.request.nacks
    expect(nacks.map { |nack| [nack.error, nack.lease_token, nack.has_retry_after_ms?] }).to eq(
      %w[a b c].map { |id| ["boom", "token-of-#{id}", false] }
    )
  end

  it "prolongs many leases with one outcome each" do
    ends_at = Google::Protobuf::Timestamp.new(seconds: 1_900_000_000)
    broker.script("Receive") { receive_response("a", "b") }
    broker.script("ExtendLease") do |request|
      results = request.extensions.map do |each|
        next Fila::V1::ExtendLeaseResult.new(lease_expires_at: ends_at) if each.message_id == "a"

        Fila::V1::ExtendLeaseResult.new(error: item_error("LEASE_EXPIRED", "late"))
      end
      Fila::V1::ExtendLeaseResponse.new(results:)
    end
    messages = client.receive("orders", max_messages: 2)
    extended, failed = client.extend_many(messages, 5000)
    expect(extended).to eq Time.at(1_900_000_000)
    expect(messages.first.lease_expires_at).to eq extended
    expect(failed).to be_a(Fila::LeaseExpiredError)
    expect(failed).to have_attributes(queue: "orders", message_id: "b", message: "late")
    sent = broker.calls("ExtendLease").first.request.extensions
    expect(sent.map { |each| [each.lease_token, each.extend_ms] })
      .to eq [["token-of-a", 5000], ["token-of-b", 5000]]
    expect(client.extend_many([])).to eq []
  end

  it "prolongs 1,000 leases by a request" do
    broker.script("ExtendLease") do |request|
      results = Array.new(request.extensions.length) { Fila::V1::ExtendLeaseResult.new }
      Fila::V1::ExtendLeaseResponse.new(results:)
    end
    messages = Array.new(2001) { |n| Fila::ConsumeMessage.new(raw_message("m-#{n}"), client) }
    expect(client.extend_many(messages).length).to eq 2001
    sizes = broker.calls("ExtendLease").map { |call| call.request.extensions.length }
    expect(sizes).to eq [1000, 1000, 1]
  end
end

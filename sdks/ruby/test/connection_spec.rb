# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What every call carries, how long it takes, and what closing means.
RSpec.describe Fila::Client do
  let(:key) { "k3y-that-nobody-may-see" }

  def hang(method)
    arrived = Thread::Queue.new
    release = Thread::Queue.new
    broker.script(method) do
      arrived << true
      release.pop
      Fila::V1.const_get("#{method}Response").new
    end
    yield arrived
  ensure
    release.close
  end

  describe "deadlines" do
    it "has one of 5 s on every unary call" do
      client.enqueue("orders")
      client.ack("orders", "m")
      client.enqueue_many([Fila::EnqueueMessage.new(queue: "orders")])
      client.list_queues
      expect(broker.seen.map(&:seconds_left)).to all(be_between(0, 5.1))
    end

    it "takes the client's, or the call's" do
      client = open_client(timeout: 40)
      client.enqueue("orders")
      client.enqueue("orders", timeout: 20)
      client.list_queues(timeout: 20)
      left = broker.seen.map(&:seconds_left)
      expect(left[0]).to be_between(30, 40.1)
      expect(left[1..]).to all(be_between(10, 20.1))
    end

    it "has none on a stream" do
      broker.script("Consume") { broker.stream(frame("a")) }
      client.consume("orders") { break }
      expect(broker.calls("Consume").first.seconds_left).to be_nil
    end

    it "is enforced by the client" do
      hang("DeleteQueue") do
        expect { client.delete_queue("orders", timeout: 0.2) }
          .to raise_error(Fila::DeadlineExceededError)
      end
    end

    it "sends nothing when it has passed" do
      [0, -1].each do |timeout|
        expect { client.enqueue("orders", timeout:) }.to raise_error(Fila::DeadlineExceededError)
        expect { client.delete_queue("q", timeout:) }.to raise_error(Fila::DeadlineExceededError)
      end
      expect(broker.seen).to eq []
    end

    it "does not hold up the news that nobody is there" do
      client = open_client("127.0.0.1:#{free_port}")
      expect { client.enqueue("orders", timeout: 600) }
        .to raise_error(Fila::UnavailableError) { |error| expect(error).to be_retryable }
    end
  end

  describe "the API key" do
    it "is sent on unary calls and streams" do
      broker.script("Consume") { broker.stream(frame("a", "b")) }
      client = open_client(api_key: key)
      client.enqueue("orders")
      client.list_queues
      client.consume("orders") { break }
      expect(broker.seen.map(&:name)).to include("EnqueueBatch", "Consume", "NackBatch")
      expect(broker.seen.map { |call| call.metadata["authorization"] }.uniq).to eq ["Bearer #{key}"]
    end

    it "is not sent when there is none" do
      client.enqueue("orders")
      expect(broker.seen.first.metadata).not_to include "authorization"
    end

    it "is not shown by errors, inspect or the log" do
      %w[EnqueueBatch GetConfig Consume].each do |method|
        broker.script(method) do
          refuse(:UNAUTHENTICATED, "key #{key} is not valid", "UNAUTHENTICATED")
        end
      end
      client = open_client(api_key: key)
      errors = [-> { client.enqueue("orders") }, -> { client.get_config("key") },
                -> { client.consume("orders").first }].map do |call|
        call.call
      rescue Fila::UnauthenticatedError => e
        e
      end
      errors << client.enqueue_many([Fila::EnqueueMessage.new(queue: "orders")]).first.error
      expect(errors.map(&:message)).to all(eq("key [redacted] is not valid"))
      shown = errors.flat_map { |e| [e.full_message, e.inspect, e.cause.inspect] }
      connection = client.instance_variable_get(:@connection)
      expect([*shown, client.inspect, connection.inspect, @log.string].join).not_to include key
    end

    ["", "with space", "new\nline", "schlüssel", "nul\0", 5].each do |wrong|
      it "is refused without being shown: #{wrong.inspect}" do
        expect { described_class.new("127.0.0.1:1", api_key: wrong) }
          .to raise_error(ArgumentError, /\Aapi_key must be printable ASCII/)
      end
    end
  end

  describe "settings" do
    ["", "localhost", "localhost:", ":5555", "localhost:http", "localhost:0", "localhost:65536",
     "http://localhost:5555", "::1:5555", "localhost:-1", "a\nb:5555"].each do |target|
      it "names a target that is no address: #{target.inspect}" do
        expect { described_class.new(target) }
          .to raise_error(ArgumentError, /\Atarget "#{Regexp.escape(target)}" is not host:port/)
      end
    end

    %w[localhost:5555 10.0.0.1:1 [::1]:5555 dns:///broker:5555 unix:/run/fila].each do |target|
      it "takes a target that is an address: #{target}" do
        expect(open_client(target).inspect).to eq %(#<Fila::Client "#{target}">)
      end
    end

    it "names wrong ones" do
      expect { described_class.new(5555) }
        .to raise_error(TypeError, "target must be a String, not Integer")
      expect { described_class.new(timeout: 0) }
        .to raise_error(ArgumentError, "timeout must be positive, got 0")
      expect { described_class.new(close_timeout: -1) }
        .to raise_error(ArgumentError, "close_timeout must not be negative, got -1")
      expect { described_class.new(max_buffered_bytes: 0) }
        .to raise_error(ArgumentError, "max_buffered_bytes must be positive, got 0")
    end

    it "is 127.0.0.1:5555 by default" do
      expect(open_client("127.0.0.1:5555").inspect).to eq described_class.new.inspect
    end

    it "sets up the channel as the design asks" do
      tls = Fila::TlsOptions.new(server_name: "b")
      backoff = Fila::Backoff.new(initial: 0.2, maximum: 3)
      expect(Fila.const_get(:Channel).arguments(tls, 7, backoff)).to include(
        "grpc.max_send_message_length" => 7, "grpc.max_receive_message_length" => 7,
        "grpc.keepalive_time_ms" => 20_000, "grpc.keepalive_timeout_ms" => 5_000,
        "grpc.http2.ping_timeout_ms" => 5_000, "grpc.keepalive_permit_without_calls" => 1,
        "grpc.enable_retries" => 0, "grpc.initial_reconnect_backoff_ms" => 200,
        "grpc.max_reconnect_backoff_ms" => 3_000, GRPC::Core::Channel::SSL_TARGET => "b"
      )
    end

    it "says who it is" do
      client.enqueue("orders")
      expect(broker.seen.first.metadata["user-agent"]).to start_with "fila-ruby/#{Fila::VERSION} "
    end

    it "receives frames larger than gRPC's default" do
      large = Array.new(3) { |n| raw_message("m-#{n}", payload: "x" * (3 << 20)) }
      broker.script("Consume") { broker.stream(Fila::V1::ConsumeResponse.new(messages: large)) }
      expect(client.consume("orders").first(3).map { |m| m.payload.bytesize }).to eq [3 << 20] * 3
    end

    it "keeps a small receive limit" do
      broker.script("Receive") do
        Fila::V1::ReceiveResponse.new(messages: [raw_message("m", payload: "x" * 2000)])
      end
      client = open_client(max_message_bytes: 1000)
      expect { client.receive("orders") }.to raise_error(Fila::ResourceExhaustedError)
    end
  end

  describe "interrupting a call" do
    it "takes the call back and leaves the client as it was" do
      hang("Receive") do |arrived|
        call = in_thread { client.receive("orders", wait_ms: 60_000) }
        arrived.pop
        call.raise(Interrupt)
        expect { call.value }.to raise_error(Interrupt)
        expect(client.enqueue("orders", "x")).to start_with "x#"
        connection = client.instance_variable_get(:@connection)
        eventually("an end") { connection.instance_variable_get(:@under_way).empty? }
      end
    end
  end

  describe "closing" do
    it "fails every call afterwards, and is harmless twice" do
      client.enqueue("orders")
      client.close
      client.close
      message = Fila::EnqueueMessage.new(queue: "orders")
      [
        -> { client.enqueue("orders") }, -> { client.enqueue("orders", idempotency_key: "k") },
        -> { client.enqueue_many([message]) }, -> { client.enqueue_many([]) },
        -> { client.ack("orders", "m") }, -> { client.ack_many([]) },
        -> { client.nack("orders", "m") }, -> { client.extend_lease("orders", "m") },
        -> { client.receive("orders") }, -> { client.consume("orders") },
        -> { client.list_queues }
      ].each do |call|
        expect(&call).to raise_error(Fila::ClientClosedError, "the client is closed")
      end
      expect(broker.seen.length).to eq 1
    end

    it "happens at the end of a block" do
      kept = nil
      result = described_class.open(broker.target) do |client|
        kept = client
        client.enqueue("orders", "x")
      end
      expect(result).to start_with "x#"
      expect { kept.enqueue("orders") }.to raise_error(Fila::ClientClosedError)
      expect { described_class.open(broker.target) { raise KeyError } }.to raise_error(KeyError)
    end

    it "is the caller's without a block" do
      client = described_class.open(broker.target, timeout: 7)
      expect(client.enqueue("orders", "x")).to start_with "x#"
      client.close
    end

    [nil, "k"].each do |idempotency_key|
      it "ends calls under way, #{idempotency_key ? "with" : "without"} an idempotency key" do
        hang("EnqueueBatch") do |arrived|
          calls = Array.new(5) do
            in_thread do
              client.enqueue("orders", idempotency_key:, timeout: 600)
            rescue Fila::Error => e
              e.class
            end
          end
          arrived.pop
          client.close
          expect(calls.map(&:value)).to eq [Fila::ClientClosedError] * 5
        end
      end
    end

    it "ends a call that waits to be sent again" do
      backoff = Fila::Backoff.new(initial: 300, maximum: 300)
      client = open_client("127.0.0.1:#{free_port}", backoff:, timeout: 600)
      call = in_thread { client.list_queues }
      eventually("a waiting call") { call.status == "sleep" }
      client.close
      expect { call.value }.to raise_error(Fila::ClientClosedError)
    end
  end
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What is enqueued is what arrives, in order, never twice by accident.
RSpec.describe "Producing" do
  def sent
    broker.calls("EnqueueBatch").flat_map { |call| call.request.messages.to_a }
  end

  def message(payload = "", **fields)
    Fila::EnqueueMessage.new(queue: "orders", payload:, **fields)
  end

  {
    "empty" => "", "all bytes" => (0..255).to_a.pack("C*"), "text" => "größer ☃",
    "not UTF-8" => "\xFF\xFE".b, "one mebibyte" => "x" * (1 << 20)
  }.each do |what, payload|
    it "sends a payload as it is: #{what}" do
      client.enqueue("orders", payload)
      expect(sent.first.payload).to eq payload.b
    end
  end

  it "sends headers as they are, inside the message" do
    headers = { "Tenant" => "upper", "tenant" => "lower", "empty" => "", "schlüssel-☃" => "wert 😈",
                "authorization" => "Bearer not-a-credential", ":path" => "/elsewhere" }
    client.enqueue("orders", "x", headers:)
    client.enqueue("orders", "x", headers: { tenant: "by symbol" })
    client.enqueue("orders", "x")
    expect(sent.map { |found| found.headers.to_h })
      .to eq [headers, { "tenant" => "by symbol" }, {}]
    expect(broker.seen.first.metadata.keys & %w[authorization tenant empty]).to eq []
  end

  it "takes what a call is about by name, too" do
    client.enqueue(queue: "orders", headers: { "a" => "b" }, payload: "x")
    client.ack(queue: "orders", msg_id: "m")
    client.nack(queue: "orders", msg_id: "m", error: "no")
    broker.script("Consume") { broker.stream(frame("a")) }
    expect(client.consume(queue: "orders") { |message| break message.id }).to eq "a"
    expect(sent.first).to eq Fila::V1::EnqueueRequest.new(queue: "orders", payload: "x",
                                                          headers: { "a" => "b" })
    expect(broker.calls("AckBatch").first.request.acks.to_a)
      .to eq [Fila::V1::AckRequest.new(queue: "orders", message_id: "m")]
    expect(broker.calls("NackBatch").first.request.nacks.to_a)
      .to eq [Fila::V1::NackRequest.new(queue: "orders", message_id: "m", error: "no")]
  end

  it "names what a call is about that is not there" do
    { -> { client.enqueue } => "queue", -> { client.consume } => "queue",
      -> { client.ack("orders") } => "message_id", -> { client.nack(msg_id: "m") } => "queue" }
      .each do |call, name|
        expect(&call).to raise_error(TypeError, "#{name} must be a String, not nil")
      end
    expect(broker.seen).to eq []
  end

  it "sends every option" do
    deliver_at = Time.at(1_900_000_000, 678, :millisecond)
    client.enqueue("orders", fairness_key: "acme", weight: 3, throttle_keys: %w[mail sms],
                             throttle_cost: 2, delay_ms: 10, deliver_at:, ttl_ms: 20,
                             idempotency_key: "once")
    expect(sent.first).to eq Fila::V1::EnqueueRequest.new(
      queue: "orders", fairness_key: "acme", weight: 3, throttle_keys: %w[mail sms],
      throttle_cost: 2, delay_ms: 10, ttl_ms: 20, idempotency_key: "once",
      deliver_at: Google::Protobuf::Timestamp.new(seconds: 1_900_000_000, nanos: 678_000_000)
    )
  end

  [
    [{ payload: 3 }, TypeError, "payload must be a String, not Integer"],
    [{ headers: { "tenant" => 3 } }, TypeError,
     'the value of header "tenant" must be a String, not Integer'],
    [{ headers: { 7 => "x" } }, TypeError, "the key of header 7 must be a String, not Integer"],
    [{ headers: [%w[a b]] }, TypeError, "headers must be a Hash, not Array"],
    [{ headers: { "a" => "\xFF" } }, ArgumentError, 'the value of header "a" is not valid UTF-8'],
    [{ headers: { "a" => "\xFF".b } }, ArgumentError,
     'the value of header "a" cannot be converted to UTF-8'],
    [{ queue: 5 }, TypeError, "queue must be a String, not Integer"],
    [{ queue: nil }, TypeError, "queue must be a String, not nil"],
    [{ fairness_key: 5 }, TypeError, "fairness_key must be a String, not Integer"],
    [{ weight: "3" }, TypeError, "weight must be an Integer, not String"],
    [{ weight: -1 }, ArgumentError, "weight must not be negative, got -1"],
    [{ weight: 1 << 40 }, ArgumentError, "weight must be at most 4294967295, got 1099511627776"],
    [{ delay_ms: 1.5 }, TypeError, "delay_ms must be an Integer, not Float"],
    [{ throttle_keys: "mail" }, TypeError, "throttle_keys must be an Array of String, not String"],
    [{ throttle_keys: [1] }, TypeError, "throttle_keys must be a String, not Integer"],
    [{ deliver_at: 5 }, TypeError, "deliver_at must be a Time, not Integer"]
  ].each do |arguments, kind, text|
    it "names a wrong argument and sends nothing: #{text}" do
      fields = { queue: "orders", payload: "" }.merge(arguments)
      options = fields.except(:queue, :payload)
      expect { client.enqueue(fields[:queue], fields[:payload], **options) }
        .to raise_error(kind, text)
      expect { client.enqueue_many([Fila::EnqueueMessage.new(**fields)]) }
        .to raise_error(kind, text)
      expect(broker.seen).to eq []
    end
  end

  it "shows no value in the text about a wrong header" do
    expect { client.enqueue("orders", headers: { "token" => "secret-\xFF" }) }
      .to raise_error(ArgumentError) { |error|
        expect("#{error.message} #{error.cause.inspect}").not_to include "secret"
      }
  end

  it "stores many messages in order with a result each" do
    count = (2 * 1000) + 1
    results = client.enqueue_many((0...count).lazy.map { |n| message(n.to_s) })
    expect(results.map { |result| result.unwrap[/.*(?=#)/].to_i }).to eq (0...count).to_a
    expect(results.any? { |result| result.duplicate? || result.error }).to be false
    expect(broker.seen.map { |call| call.request.messages.length }).to eq [1000, 1000, 1]
    expect(sent.map { |found| found.payload.to_i }).to eq (0...count).to_a
  end

  it "splits many messages by size" do
    half = "x" * (1 << 19)
    huge = "y" * ((1 << 20) + 1)
    payloads = ["a", half, half, "b", huge, "c"]
    results = client.enqueue_many(payloads.map { |payload| message(payload) })
    expect(results.length).to eq 6
    sizes = broker.seen.map { |call| call.request.messages.map { |m| m.payload.bytesize } }
    expect(sizes).to eq [[1, 1 << 19], [1 << 19, 1], [huge.bytesize], [1]]
  end

  it "sends nothing for no messages" do
    expect([client.enqueue_many([]), client.ack_many([]), client.nack_many([])]).to eq [[], [], []]
    expect(broker.seen).to eq []
  end

  it "fails one bad message of many alone" do
    broker.script("EnqueueBatch") do |request|
      results = request.messages.map do |found|
        error = item_error("QUEUE_NOT_FOUND", "no such queue") if found.queue == "nowhere"
        duplicate = !found.idempotency_key.empty?
        Fila::V1::EnqueueResult.new(message_id: error ? "" : "id", duplicate:, error:)
      end
      Fila::V1::EnqueueBatchResponse.new(results:)
    end
    first, second, third = client.enqueue_many(
      [message, Fila::EnqueueMessage.new(queue: "nowhere"), message(idempotency_key: "k")]
    )
    expect([first.message_id, first.duplicate?, first.error]).to eq ["id", false, nil]
    expect([third.unwrap, third.duplicate?]).to eq ["id", true]
    expect(second.error).to be_a Fila::QueueNotFoundError
    expect([second.message_id, second.error.queue]).to eq ["", "nowhere"]
    expect { second.unwrap }.to raise_error(Fila::QueueNotFoundError, "no such queue")
  end

  it "fails the messages of a failed request and those behind it" do
    broker.script("EnqueueBatch") do |request|
      refuse(:UNAVAILABLE, "away", "SHUTTING_DOWN") unless broker.seen.length < 2
      broker.store(request)
    end
    errors = client.enqueue_many(Array.new(3005) { message }).map(&:error)
    expect(errors.first(1000)).to all(be_nil)
    expect(errors.drop(1000)).to all(be_an_instance_of(Fila::ShuttingDownError))
    expect(errors[1000...2000].map(&:message).uniq).to eq ["away"]
    # Said once, however many requests were left.
    expect(errors.drop(2000).map { |error| error.message.scan("not sent").length }.uniq).to eq [1]
    expect(broker.seen.length).to eq 2
  end

  it "takes too few results for an error of all" do
    broker.script("EnqueueBatch") { Fila::V1::EnqueueBatchResponse.new }
    expect { client.enqueue("orders") }
      .to raise_error(Fila::InternalError, /0 results for 1 items/)
  end

  describe "while the broker is away" do
    def failing(times, code = :UNAVAILABLE)
      broker.script("EnqueueBatch") do |request|
        refuse(code, "reset") if broker.seen.length <= times
        broker.store(request)
      end
    end

    let(:client) { open_client(backoff: Support::QUICK, timeout: 10) }

    it "never sends an enqueue again that may have been stored" do
      failing(1000)
      expect { client.enqueue("orders") }.to raise_error(Fila::UnavailableError)
      expect(client.enqueue_many([message]).map { |result| result.error.class })
        .to eq [Fila::UnavailableError]
      expect(broker.seen.length).to eq 2
    end

    it "sends an enqueue with an idempotency key until the broker is back" do
      failing(3)
      expect(client.enqueue("orders", "x", idempotency_key: "k")).to start_with "x#"
      expect(sent.map(&:idempotency_key)).to eq ["k"] * 4
    end

    it "gives every attempt what is left of the call's own deadline" do
      failing(3)
      client = open_client(backoff: Fila::Backoff.new(initial: 0.3, maximum: 0.3), timeout: 10)
      allow(client.instance_variable_get(:@connection)).to receive(:rand).and_return(1.0)
      client.enqueue("orders", idempotency_key: "k")
      first, *, last = broker.seen.map(&:seconds_left)
      expect(first).to be <= 10.1
      # Three waits, of which gRPC may round off a tenth of a second.
      expect(last).to be <= first - 0.7
    end

    it "sends many again only if all have keys" do
      failing(2)
      with_key = message(idempotency_key: "k")
      expect(client.enqueue_many([with_key, with_key]).map(&:error)).to eq [nil, nil]
      expect(broker.seen.length).to eq 3
      failing(5)
      expect(client.enqueue_many([with_key, message]).map { |result| result.error.class })
        .to eq [Fila::UnavailableError] * 2
      expect(broker.seen.length).to eq 4
    end

    it "ends retries with the deadline" do
      failing(1000)
      # Which one depends on whether the last attempt was still answered.
      expect { client.enqueue("orders", idempotency_key: "k", timeout: 3) }
        .to raise_error(be_a(Fila::UnavailableError).or(be_a(Fila::DeadlineExceededError)))
      expect(broker.seen.length).to be > 1
    end

    it "tries nothing but unavailable again" do
      failing(1000, :INTERNAL)
      expect { client.enqueue("orders", idempotency_key: "k") }.to raise_error(Fila::InternalError)
      expect(broker.seen.length).to eq 1
    end

    describe "settling" do
      # Is away first, then says so of every message.
      def away_then(reason = nil, times: 1)
        { "AckBatch" => [:acks, Fila::V1::AckBatchResponse, Fila::V1::ItemResult],
          "NackBatch" => [:nacks, Fila::V1::NackBatchResponse, Fila::V1::ItemResult],
          "ExtendLease" => [:extensions, Fila::V1::ExtendLeaseResponse,
                            Fila::V1::ExtendLeaseResult] }.each do |call, (field, answer, result)|
          broker.script(call) do |request|
            refuse(:UNAVAILABLE, "away") if broker.calls(call).length <= times
            error = reason && item_error(reason, "no")
            answer.new(results: request.public_send(field).map { result.new(error:) })
          end
        end
      end

      let(:calls) do
        { "AckBatch" => -> { client.ack("orders", "m", lease_token: "t") },
          "NackBatch" => -> { client.nack("orders", "m", "no", lease_token: "t") },
          "ExtendLease" => -> { client.extend_lease("orders", "m", 5, lease_token: "t") } }
      end

      it "with its token is sent again until the broker is back" do
        away_then(times: 2)
        calls.each_value(&:call)
        calls.each_key do |call|
          sent = broker.calls(call).map(&:request)
          expect([sent.length, sent.uniq.length]).to eq [3, 1]
        end
      end

      it "that finds nothing after a repeat has succeeded before" do
        away_then("MESSAGE_NOT_FOUND")
        expect([calls["AckBatch"].call, calls["NackBatch"].call]).to eq [nil, nil]
        expect { calls["ExtendLease"].call }.to raise_error(Fila::MessageNotFoundError)
      end

      it "that comes too late after a repeat is over for a nack, not for an ack" do
        away_then("LEASE_EXPIRED")
        expect(calls["NackBatch"].call).to be_nil
        expect { calls["AckBatch"].call }.to raise_error(Fila::LeaseExpiredError)
      end

      it "that finds nothing the first time has failed" do
        %w[MESSAGE_NOT_FOUND LEASE_EXPIRED].each do |reason|
          away_then(reason, times: 0)
          calls.each_value do |call|
            expect(&call).to raise_error(be_a(Fila::MessageNotFoundError)
                                     .or(be_a(Fila::LeaseExpiredError)))
          end
        end
        expect(broker.seen.length).to eq 6
      end

      it "ends with its deadline" do
        away_then(times: 1000)
        expect { client.ack("orders", "m", lease_token: "t", timeout: 0.3) }
          .to raise_error(be_a(Fila::UnavailableError).or(be_a(Fila::DeadlineExceededError)))
      end

      it "of many messages is sent again, too, whole frames and all" do
        away_then("MESSAGE_NOT_FOUND")
        messages = leased_frame("a", "b", seconds: 60).messages.to_a
        broker.script("Receive") { Fila::V1::ReceiveResponse.new(messages:) }
        frame = client.receive("orders", max_messages: 2)
        broker.script("SettleGrants") do |_|
          refuse(:UNAVAILABLE, "away") if broker.calls("SettleGrants").length < 2
          error = item_error("LEASE_EXPIRED", "none is left")
          Fila::V1::SettleGrantsResponse.new(results: [Fila::V1::GrantResult.new(error:)])
        end
        expect(client.ack_many(frame)).to eq [nil, nil]
        expect(client.ack_many(frame.first(1))).to match [be_a(Fila::MessageNotFoundError)]
        expect(client.nack_many(frame)).to eq [nil, nil]
        expect(broker.calls("SettleGrants").length).to eq 2
      end

      it "of grants by themselves is never sent again" do
        broker.script("SettleGrants") { |_| refuse(:UNAVAILABLE, "away") }
        [-> { client.ack_grant("orders", "t") }, -> { client.nack_grant("orders", "t") }]
          .each { |call| expect(&call).to raise_error(Fila::UnavailableError) }
        expect(broker.seen.length).to eq 2
      end
    end

    it "never sends settling again that has no token" do
      calls = {
        "AckBatch" => -> { client.ack("orders", "m") },
        "NackBatch" => -> { client.nack("orders", "m") },
        "ExtendLease" => -> { client.extend_lease("orders", "m") },
        "Purge" => -> { client.purge("orders") },
        "DeleteConfig" => -> { client.delete_config("key") }
      }
      calls.each do |method, call|
        broker.script(method) { refuse(:UNAVAILABLE, "reset") }
        expect(&call).to raise_error(Fila::UnavailableError)
      end
      expect(broker.seen.map(&:name)).to eq calls.keys
    end

    it "sends reads and settings again" do
      {
        "ListQueues" => -> { client.list_queues },
        "GetConfig" => -> { client.get_config("key") },
        "SetConfig" => -> { client.set_config("key", "value") }
      }.each do |method, call|
        broker.script(method) do
          refuse(:UNAVAILABLE, "reset") if broker.calls(method).length < 3
          Fila::V1.const_get("#{method}Response").new
        end
        call.call
        expect(broker.calls(method).length).to eq 3
      end
    end
  end

  describe "on the wire" do
    let(:wire) { Fila.const_get(:Wire) }

    [0, 1, 127, 128, 16_383, 16_384, 2_097_152].each do |size|
      it "joins items to the batch that protobuf would build, with #{size} bytes" do
        data = wire.join([wire.enqueue_item(message("x" * size, headers: { "a" => "b" }), {}),
                          wire.enqueue_item(message("y", throttle_keys: ["t"]), {})])
        expect(Fila::V1::EnqueueBatchRequest.decode(data)).to eq Fila::V1::EnqueueBatchRequest.new(
          messages: [
            Fila::V1::EnqueueRequest.new(queue: "orders", headers: { "a" => "b" },
                                         payload: "x" * size),
            Fila::V1::EnqueueRequest.new(queue: "orders", payload: "y", throttle_keys: ["t"])
          ]
        )
      end
    end

    it "says retry_after_ms only when it is given" do
      items = [nil, 0, 5].map do |retry_after_ms|
        wire.nack_item("orders", "m", "boom", nil, retry_after_ms:)
      end
      nacks = Fila::V1::NackBatchRequest.decode(wire.join(items)).nacks
      expect(nacks.map { |nack| nack.has_retry_after_ms? ? nack.retry_after_ms : nil })
        .to eq [nil, 0, 5]
    end
  end
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

require "open3"
require "rbconfig"

# What becomes of a message is what its handler's end means, however it ends.
RSpec.describe Fila::Worker do
  let(:events) { Thread::Queue.new }
  let(:gate) { Gate.new }
  let(:ended) { Thread::Queue.new }

  after { gate.open }

  def prolong
    broker.script("SettleGrants") do |request|
      results = request.settlements.map do |item|
        Fila::V1::GrantResult.new(messages: item.expected_messages)
      end
      Fila::V1::SettleGrantsResponse.new(results:)
    end
  end

  def feed_of(worker)
    worker.instance_variable_get(:@feed)
  end

  # A worker that runs, of the frames that are given; its thread, which has `value`.
  def start(*frames, **options, &handler)
    prolong
    broker.script("Consume") { broker.stream(*frames, ended:) } if frames.any?
    @worker = client.worker("orders", on_event: events.method(:push), **options, &handler)
    @run = in_thread { @worker.run }
  end

  def stop(**options)
    @worker.stop(**options)
    @run.value
  end

  # So many events, sorted by message: kind, message and error.
  def told(count)
    eventually("#{count} events") { events.length >= count }
    found = Array.new(count) { events.pop }.sort_by { |event| event.message.id }
    found.map { |event| [event.kind, event.message.id] }
  end

  def acked
    broker.calls("AckBatch").flat_map { |call| call.request.acks.map(&:message_id) } +
      broker.calls("SettleGrants").flat_map do |call|
        call.request.settlements.filter_map { |item| item.lease_token if item.action == :ack }
      end
  end

  def nacks
    broker.calls("NackBatch").flat_map { |call| call.request.nacks.to_a }
  end

  it "acks what a handler returns from, and runs so many handlers at a time" do
    start(frame("a", "b", "c"), frame("d"), concurrency: 2) do |message|
      gate.pass
      message.payload
    end
    gate.wait_for_requests(2)
    expect(@worker.instance_variable_get(:@running).size).to eq 2
    gate.open
    expect(told(4)).to eq([:acked].product(%w[a b c d]))
    expect(stop).to be_nil
    expect(acked).to match_array %w[a b c d]
  end

  it "leases twice as many messages as it handles" do
    {
      { concurrency: 3 } => [6, 32], {} => [20, 32],
      { concurrency: 2, batch_size: 50 } => [200, 50],
      { concurrency: 3, prefetch: 4 } => [4, 32], { concurrency: 3, prefetch: 1 } => [3, 32],
      { visibility_timeout_ms: 7 } => [20, 32]
    }.each_with_index do |(options, expected), n|
      broker.script("Consume") { broker.stream }
      start(**options) { nil }
      eventually("a stream") { broker.calls("Consume").length == n + 1 }
      request = broker.calls("Consume").last.request
      expect([request.max_in_flight, request.max_batch]).to eq expected
      expect(request.visibility_timeout_ms).to eq options.fetch(:visibility_timeout_ms, 0)
      stop
    end
  end

  it "names a wrong option" do
    { { concurrency: 0 } => ArgumentError, { batch_size: "3" } => TypeError,
      { grace: -1 } => ArgumentError, { handler_timeout: "1 s" } => TypeError,
      { prefetch: 1.5 } => TypeError }.each do |options, kind|
      expect { client.worker("orders", **options) { nil } }
        .to raise_error(kind, /\A#{options.keys.first} must/)
    end
    expect { client.worker("orders") }.to raise_error(ArgumentError, "a worker needs a block")
  end

  broken = Class.new(StandardError) do
    def self.name
      "Broken"
    end

    def message
      raise "no message"
    end
  end

  {
    "fails" => [-> { raise KeyError, "no such key" }, { error: "KeyError: no such key" }],
    "fails with something that is no StandardError" => [-> { raise NotImplementedError, "later" },
                                                        { error: "NotImplementedError: later" }],
    "exits" => [-> { exit }, { error: "SystemExit: exit" }],
    "ends its own thread" => [-> { Thread.current.kill },
                              { error: "ThreadError: the handler's thread was ended" }],
    "fails with bytes" => [-> { raise "\xFFx".b }, { error: "RuntimeError: \uFFFDx" }],
    "fails at length" => [-> { raise "é" * 4096 }, { error: "RuntimeError: #{"é" * 2041}" }],
    "fails without words" => [-> { raise broken }, { error: "#{broken}: " }],
    "cannot go on" => [-> { raise Fila::DeadLetter, "no such customer" },
                       { error: "no such customer", dead_letter: true }, :dead_lettered],
    "cannot go on and does not say why" => [-> { raise Fila::DeadLetter },
                                            { dead_letter: true }, :dead_lettered],
    "is held up" => [-> { raise Fila::Backpressure.new(1.5, throttle_key: "mail", reason: "429") },
                     { error: "429", retry_after_ms: 1500, throttle_key: "mail" }, :put_off],
    "is held up for less than a millisecond" => [-> { raise Fila::Backpressure, 0.0001 },
                                                 { retry_after_ms: 1 }, :put_off]
  }.each do |how, (act, nack, kind)|
    it "nacks what a handler #{how}" do
      start(frame("a"), frame("b"), concurrency: 1) { |message| message.id == "a" && act.call }
      expect(told(2)).to eq [[kind || :nacked, "a"], [:acked, "b"]]
      stop
      expect(nacks).to eq [
        Fila::V1::NackRequest.new(queue: "orders", message_id: "a", lease_token: "token-of-a",
                                  **nack)
      ]
    end
  end

  it "names what makes no sense as backpressure" do
    expect { Fila::Backpressure.new("1") }.to raise_error(TypeError, /\Aretry_after must be/)
    expect { Fila::Backpressure.new(-1) }.to raise_error(ArgumentError, /\Aretry_after must not/)
    expect { Fila::Backpressure.new(1, throttle_key: 5) }.to raise_error(TypeError, /throttle_key/)
  end

  it "leaves alone what a handler settled itself" do
    start(frame("a", "b", "c", "d")) do |message|
      case message.id
      when "a" then message.ack
      when "b" then message.nack("no")
      when "c" then client.ack_many([message])
      end
    end
    expect(told(1)).to eq [[:acked, "d"]]
    stop
    expect(acked.sort).to eq %w[a c d]
    expect(nacks.map(&:error)).to eq ["no"]
    expect(events).to be_empty
  end

  it "hands a batch of what is there to a handler, and acks it with one call" do
    sizes = Thread::Queue.new
    frame = leased_frame("a", "b", "c", "d", "e", seconds: 60)
    start(frame, concurrency: 1, batch_size: 3) do |messages|
      sizes << messages.length
      messages.first.nack if messages.length == 3
      raise KeyError, "odd" if messages.length == 2
    end
    expect(told(4)).to eq [[:acked, "b"], [:acked, "c"], [:nacked, "d"], [:nacked, "e"]]
    stop
    expect([sizes.pop, sizes.pop]).to eq [3, 2]
    expect(broker.calls("AckBatch").map { |call| call.request.acks.map(&:message_id) })
      .to eq [%w[b c]]
    expect(broker.calls("NackBatch").map { |call| call.request.nacks.map(&:message_id) })
      .to eq [["a"], %w[d e]]
  end

  it "passes a message through what is around the handler" do
    seen = Thread::Queue.new
    layer = lambda do |name|
      lambda do |message, following|
        seen << "#{name} in"
        following.call(message)
      ensure
        seen << "#{name} out"
      end
    end
    start(frame("a", "b"), concurrency: 1,
                           middleware: [layer.call("outer"), layer.call("inner")]) do |message|
      seen << message.id
      raise KeyError if message.id == "b"
    end
    expect(told(2)).to eq [[:acked, "a"], [:nacked, "b"]]
    stop
    expect(Array.new(10) { seen.pop }).to eq(%w[a b].flat_map do |id|
      ["outer in", "inner in", id, "inner out", "outer out"]
    end)
  end

  it "lets what is around the handler answer for it" do
    start(frame("a"), middleware: [->(_, _) { raise Fila::DeadLetter, "not mine" }]) { raise "no" }
    expect(told(1)).to eq [[:dead_lettered, "a"]]
    stop
  end

  it "tells each event with what it is about, and survives who listens" do
    on_event = lambda do |event|
      events << event
      raise "not interested"
    end
    start(frame("a"), on_event:) { raise KeyError, "no" }
    eventually("an event") { !events.empty? }
    stop
    event = events.pop
    expect([event.kind, event.message.id, event.error.class]).to eq [:nacked, "a", KeyError]
    expect(event.seconds).to be >= 0
    expect(@log.string).to match(/WARN.*on_event failed: RuntimeError: not interested/)
  end

  it "says what could not be settled, and goes on" do
    broker.script("AckBatch") do |request|
      results = request.acks.map do |ack|
        error = item_error("LEASE_EXPIRED", "too late") if ack.message_id == "a"
        Fila::V1::ItemResult.new(error:)
      end
      Fila::V1::AckBatchResponse.new(results:)
    end
    start(frame("a"), frame("b")) { nil }
    eventually("two events") { events.length == 2 }
    stop
    found = Array.new(2) { events.pop }.to_h { |event| [event.message.id, event] }
    expect(found.transform_values(&:kind)).to eq("a" => :settle_failed, "b" => :acked)
    expect(found["a"].error).to be_a Fila::LeaseExpiredError
    expect(@log.string).to match(/WARN.*message a of queue "orders" was not settled.*too late/)
  end

  it "settles beside its handlers, and not without bound" do
    answer = broker.scripted("AckBatch")
    broker.script("AckBatch") do |request|
      gate.pass
      answer.call(request)
    end
    handled = Thread::Queue.new
    start(*(1..12).map { |n| frame("m-#{n}") }, concurrency: 2, prefetch: 4) do |message|
      handled << message.id
    end
    # Four are being settled; two handlers have ended and wait.
    eventually("handlers that ended") { handled.length == 6 }
    sleep 0.1
    expect(handled.length).to eq 6
    gate.open
    expect(told(12).map(&:first).uniq).to eq [:acked]
    stop
  end

  it "settles again while the broker is away" do
    broker.script("AckBatch") do |request|
      calls = broker.calls("AckBatch").length
      refuse(:UNAVAILABLE, "away") if calls < 3
      error = item_error("MESSAGE_NOT_FOUND", "gone")
      Fila::V1::AckBatchResponse.new(results: request.acks.map { Fila::V1::ItemResult.new(error:) })
    end
    start(frame("a")) { nil }
    expect(told(1)).to eq [[:acked, "a"]]
    stop
    expect(broker.calls("AckBatch").length).to eq 3
  end

  it "keeps the leases of what is being handled" do
    start(leased_frame("a", "b", seconds: 4), concurrency: 1) { gate.pass }
    gate.wait_for_requests(1)
    eventually("extensions") do
      broker.calls("SettleGrants").count { |call| call.request.settlements[0]["extend"] } >= 3
    end
    gate.open
    told(2)
    stop
    kept = client.instance_variable_get(:@connection).leases.instance_variable_get(:@kept)
    expect(kept).to be_empty
  end

  it "gives up on a handler that is too slow, which keeps its place" do
    # Even on a busy machine a handler that just returns does so within this time.
    start(frame("a"), frame("b"), concurrency: 1, handler_timeout: 2) do |message|
      message.id == "a" && gate.pass
    end
    expect(told(2)).to eq [[:timed_out, "a"], [:nacked, "a"]]
    expect(nacks.map(&:error)).to eq ["handler timed out after 2 s"]
    expect(@worker.instance_variable_get(:@running).size).to eq 1
    gate.open
    eventually("the other message") { acked == ["b"] }
    stop
    expect(nacks.length).to eq 1
  end

  describe "when it is stopped" do
    it "waits for its handlers, settles what they did, and gives back what they have not seen" do
      start(leased_frame("a", "b", "c", seconds: 60), concurrency: 1) { gate.pass }
      gate.wait_for_requests(1)
      @worker.stop
      eventually("what was given back") { released(broker).any? }
      expect(released(broker)).to eq %w[b c]
      expect(@run).to be_alive
      gate.open
      expect(@run.value).to be_nil
      expect(acked).to eq ["a"]
    end

    it "gives back what is still being handled after its grace, and does not wait for it" do
      start(frame("a"), frame("b"), concurrency: 2, grace: 600) { gate.pass }
      gate.wait_for_requests(2)
      @worker.stop
      expect(@run.join(0.05)).to be_nil
      stop(grace: 0)
      expect(told(2)).to eq [[:given_back, "a"], [:given_back, "b"]]
      expect(released(broker)).to match_array %w[a b]
      gate.open
      eventually("handlers' ends") { @worker.instance_variable_get(:@threads).zero? }
      expect([acked, nacks.length]).to eq [[], 2]
    end

    it "ends before it has begun" do
      worker = client.worker("orders") { nil }
      worker.stop
      expect(worker.run).to be_nil
      expect(broker.seen).to eq []
      expect { worker.run }.to raise_error(RuntimeError, "a worker runs once; make another")
    end

    it "may be told so by its own handler, and while the broker is away" do
      start(frame("a"), concurrency: 1) { @worker.stop }
      expect(@run.value).to be_nil
      expect(acked).to eq ["a"]
      broker.script("Consume") { refuse(:UNAVAILABLE, "away") }
      start(concurrency: 1) { nil }
      eventually("a lost stream") { @log.string.include?("was lost") }
      expect(stop).to be_nil
    end

    it "ends with its client" do
      start(frame("a"), concurrency: 1) { gate.pass }
      gate.wait_for_requests(1)
      client.close
      gate.open
      expect(@run.value).to be_nil
    end

    it "gives everything back when the thread that runs it is interrupted" do
      start(frame("a", "b"), concurrency: 1) { gate.pass }
      gate.wait_for_requests(1)
      @run.raise(Interrupt)
      expect { @run.value }.to raise_error(Interrupt)
      eventually("what was given back") { released(broker).sort == %w[a b] }
    end
  end

  it "raises what ends a consumer, after its handlers" do
    broker.script("Consume") do
      Enumerator.new do |out|
        out << frame("a")
        refuse(:NOT_FOUND, "no queue", "QUEUE_NOT_FOUND")
      end
    end
    start(concurrency: 2) { gate.pass }
    gate.wait_for_requests(1)
    feed = feed_of(@worker)
    eventually("a failure") { feed.instance_variable_get(:@failure) }
    expect(@run).to be_alive
    gate.open
    expect { @run.value }.to raise_error(Fila::QueueNotFoundError, "no queue")
    expect(acked).to eq ["a"]
  end

  it "shares a queue with another worker of the same client" do
    seen = Thread::Queue.new
    broker.script("Consume") do
      n = broker.calls("Consume").length
      broker.stream(frame("#{n}-a"), frame("#{n}-b"))
    end
    prolong
    workers = Array.new(2) { client.worker("orders", concurrency: 2) { |m| seen << m.id } }
    runs = workers.map { |worker| in_thread { worker.run } }
    eventually("four messages") { seen.length == 4 }
    workers.each(&:stop)
    runs.each(&:value)
    expect(acked).to match_array %w[1-a 1-b 2-a 2-b]
  end

  describe "in the main thread" do
    def run(program)
      prolong
      broker.script("Consume") { broker.stream(frame("a", "b")) }
      Open3.capture3(RbConfig.ruby, "-I", File.expand_path("../lib", __dir__), "-e", <<~RUBY)
        require "fila"
        client = Fila::Client.new("#{broker.target}")
        #{program}
      RUBY
    end

    it "is stopped by a signal, and puts back what was trapped before" do
      output, errors, status = run(<<~RUBY)
        trap("TERM") { puts "mine" }
        worker = client.worker("orders", concurrency: 1) do |message|
          Process.kill("TERM", Process.pid)
          sleep 0.01 until worker.instance_variable_get(:@feed).closed?
          puts message.id
        end
        worker.run
        puts "ended"
        Process.kill("TERM", Process.pid)
        sleep 0.1
      RUBY
      expect([output.lines.map(&:chomp), errors]).to eq [%w[a ended mine], ""]
      expect(status).to be_success
      expect([acked, released(broker)]).to eq [["a"], ["b"]]
    end

    it "ends its grace at the second signal" do
      output, errors, status = run(<<~RUBY)
        worker = client.worker("orders", concurrency: 1, grace: 600) do
          Process.kill("INT", Process.pid)
          # Two at once might count as one.
          sleep 0.01 until worker.inspect.end_with?("stopping>")
          Process.kill("INT", Process.pid)
          sleep
        end
        worker.run
        puts "ended"
      RUBY
      expect([output, errors, status.success?]).to eq ["ended\n", "", true]
      expect(released(broker)).to match_array %w[a b]
    end

    it "leaves signals alone when told so" do
      output, _, status = run(<<~RUBY)
        worker = client.worker("orders", concurrency: 1) { Process.kill("TERM", Process.pid) }
        worker.run(signals: false)
        puts "ended"
      RUBY
      expect([output, status.termsig || status.exitstatus]).to eq ["", 15]
    end
  end
end

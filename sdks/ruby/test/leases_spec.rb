# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What a consumer holds is kept; what it lost is not handed out.
RSpec.describe "leases" do
  # Long enough that nothing ends by itself on a machine that is busy; extended after half of it.
  let(:long) { 60 }
  # Due at once.
  let(:short) { 0.2 }

  # Prolongs leases, or says by token why not.
  def prolong(refused = {})
    broker.script("SettleGrants") do |request|
      results = request.settlements.map do |item|
        reason = refused[item.lease_token]
        error = reason && item_error(reason, "no")
        Fila::V1::GrantResult.new(messages: error ? 0 : 1, error:)
      end
      Fila::V1::SettleGrantsResponse.new(results:)
    end
  end

  def extensions
    broker.calls("SettleGrants").flat_map { |call| call.request.settlements.to_a }
  end

  def keeper
    client.instance_variable_get(:@connection).leases
  end

  def kept
    keeper.instance_variable_get(:@kept)
  end

  # Whether every lease that is kept has been prolonged, and not only asked for.
  def renewed?
    kept.each_key.all? { |lease| lease.extend_at > lease.ends_at - (long / 2) - 1 }
  end

  def held_by(consumer)
    consumer.instance_variable_get(:@feed).instance_variable_get(:@unread)
  end

  # Makes the leases that are kept due, as time would.
  def pass_half
    lock = keeper.instance_variable_get(:@lock)
    lock.synchronize do
      kept.each_key { |lease| lease.extend_at = 0 }
      keeper.instance_variable_get(:@changed).broadcast
    end
  end

  # Ends leases, as time would.
  def pass_all(consumer)
    held_by(consumer).each { |_, lease| lease.ends_at = 0 }
  end

  def open_consumer(*frames, **options)
    broker.script("Consume") { broker.stream(*frames) }
    count = frames.sum { |frame| frame.messages.length }
    client.consume("orders", **options).tap do |consumer|
      consumer.pop(timeout: 0)
      eventually("messages that wait") { held_by(consumer).length == count }
    end
  end

  it "extends what waits in a consumer, frame by frame and as one request" do
    prolong
    consumer = open_consumer(leased_frame("a", "b", seconds: long),
                             leased_frame("c", "d", seconds: long))
    pass_half
    eventually("an extension") { extensions.length == 2 }
    expect(broker.calls("SettleGrants").length).to eq 1
    expect(extensions.map { |item| [item.queue, item.lease_token, item["extend"].extend_ms] })
      .to eq [["orders", "lease-of-a", 60_000], ["orders", "lease-of-c", 60_000]]
    expect(consumer.first(4).map(&:id)).to eq %w[a b c d]
  end

  it "extends by itself, again and again, what would have ended" do
    prolong
    consumer = open_consumer(leased_frame("a", "b", seconds: 4))
    eventually("extensions") { extensions.length >= 3 }
    expect(consumer.first(2).map(&:id)).to eq %w[a b]
  end

  it "extends nothing that was handed out" do
    prolong
    consumer = open_consumer(leased_frame("a", "b", seconds: long),
                             leased_frame("c", seconds: long))
    expect(consumer.first(2).map(&:id)).to eq %w[a b]
    pass_half
    eventually("an extension") { extensions.any? }
    expect(extensions.map(&:lease_token)).to eq ["lease-of-c"]
    consumer.first
    expect(kept).to be_empty
  end

  it "extends nothing when told so, and hands out nothing whose lease ended" do
    prolong
    consumer = open_consumer(leased_frame("a", "b", seconds: short), extend_leases: false)
    sleep short
    expect(consumer.pop(timeout: 0.1)).to be_nil
    expect(extensions).to be_empty
    expect(@log.string.scan(/DEBUG.*dropped 2 messages of queue "orders"/).length).to eq 1
  end

  it "hands out what comes after messages whose leases ended" do
    consumer = open_consumer(leased_frame("a", "b", seconds: long), leased_frame("c", seconds: 90))
    held_by(consumer).first(2).each { |_, lease| lease.ends_at = 0 }
    expect(consumer.first.id).to eq "c"
  end

  it "holds no more than the broker leased to it, even if nobody takes anything" do
    go = Thread::Queue.new
    broker.script("Consume") do
      Enumerator.new do |out|
        out << leased_frame("a", "b", seconds: long)
        go.pop
        broker.stream(leased_frame("c", seconds: long)).each { |sent| out << sent }
      end
    end
    consumer = client.consume("orders", extend_leases: false)
    consumer.pop(timeout: 0)
    eventually("messages that wait") { held_by(consumer).length == 2 }
    pass_all(consumer)
    go << true
    eventually("the next frame") { held_by(consumer).map { |raw, _| raw.id } == ["c"] }
  end

  it "drops a frame that the broker has taken away, and only that" do
    prolong("lease-of-a" => "LEASE_EXPIRED")
    consumer = open_consumer(leased_frame("a", "b", seconds: long),
                             leased_frame("c", seconds: long))
    pass_half
    eventually("a lost frame") { kept.size == 1 }
    expect(consumer.first.id).to eq "c"
    expect(@log.string).to match(/DEBUG.*dropped 2 messages/)
    consumer.close
    expect(released(broker)).to be_empty
  end

  it "asks again while the broker is away" do
    prolong
    answer = broker.scripted("SettleGrants")
    broker.script("SettleGrants") do |request|
      refuse(:UNAVAILABLE, "away") if broker.calls("SettleGrants").length < 3
      answer.call(request)
    end
    consumer = open_consumer(leased_frame("a", seconds: 8))
    pass_half
    eventually("a third request") { broker.calls("SettleGrants").length >= 3 }
    eventually("a new lease") { kept.each_key.all? { |lease| lease.extend_at > lease.ends_at - 7 } }
    expect(consumer.first.id).to eq "a"
  end

  it "stops asking when the lease has ended" do
    broker.script("SettleGrants") { |_| refuse(:UNAVAILABLE, "away") }
    consumer = open_consumer(leased_frame("a", seconds: 2))
    eventually("nothing that is kept") { kept.empty? }
    expect(consumer.pop(timeout: 0)).to be_nil
  end

  it "names each message to a broker that knows no grants" do
    broker.script("SettleGrants") { |_| refuse(:UNIMPLEMENTED) }
    broker.script("ExtendLease") do |request|
      results = request.extensions.map do |item|
        error = item_error("LEASE_EXPIRED", "late") if item.message_id == "b"
        Fila::V1::ExtendLeaseResult.new(error:)
      end
      Fila::V1::ExtendLeaseResponse.new(results:)
    end
    consumer = open_consumer(leased_frame("a", "b", "c", seconds: long))
    2.times do |n|
      pass_half
      eventually("an extension") { broker.calls("ExtendLease").length == n + 1 }
      eventually("its answer") { renewed? }
    end
    expect(broker.calls("SettleGrants").length).to eq 1
    first, second = broker.calls("ExtendLease").map { |call| call.request.extensions.to_a }
    expect(first.map(&:message_id)).to eq %w[a b c]
    expect(first.map { |item| [item.lease_token, item.extend_ms] }.uniq)
      .to eq [["lease-of-a", 60_000]]
    expect(second.map(&:message_id)).to eq %w[a c]
    expect(consumer.first(2).map(&:id)).to eq %w[a c]
  end

  it "counts a lease by what the broker's times are apart" do
    lease = Fila.const_get(:Lease).new(leased_frame("a", seconds: 1.5).messages.to_a, 100.0)
    expect([lease.seconds, lease.extend_at, lease.ends_at]).to eq [1.5, 100.75, 101.5]
    lease = Fila.const_get(:Lease).new(frame("a").messages.to_a, 100.0)
    expect([lease.known?, lease.ends_at]).to eq [false, Float::INFINITY]
  end

  it "keeps nothing of a consumer that was closed or dropped" do
    prolong
    consumer = open_consumer(leased_frame("a", "b", seconds: long))
    consumer.close
    expect(kept).to be_empty
    expect(released(broker)).to eq %w[a b]
    lease = Fila.const_get(:Lease).new(leased_frame("z", seconds: long).messages.to_a, 0)
    keeper.send(:keep, lease)
    client.close
    eventually("the keeper's end") { !keeper.instance_variable_get(:@is_running) }
  end
end

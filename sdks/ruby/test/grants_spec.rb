# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Whole frames: acks of all their messages travel as one, and nobody can tell by the outcome.

RSpec.describe "grants" do
  # Lets receive return frames of so many messages: t0-0, t0-1, ... under the token t0.
  def receive_frames(*sizes)
    number = -1
    broker.script("Receive") do |_|
      number += 1
      messages = Array.new(sizes[number]) do |n|
        metadata = Fila::V1::MessageMetadata.new(queue_id: "orders", lease_token: "t#{number}")
        Fila::V1::Message.new(id: "t#{number}-#{n}", metadata:)
      end
      Fila::V1::ReceiveResponse.new(messages:)
    end
    sizes.map { |max_messages| client.receive("orders", max_messages:) }
  end

  # Answers settlements with what was expected, and with errors by token.
  def settle(refused = {})
    broker.script("SettleGrants") do |request|
      results = request.settlements.map do |item|
        reason = refused[item.lease_token]
        next Fila::V1::GrantResult.new(messages: item.expected_messages) unless reason

        Fila::V1::GrantResult.new(error: item_error(reason, "no"))
      end
      Fila::V1::SettleGrantsResponse.new(results:)
    end
  end

  def settlements
    broker.calls("SettleGrants").flat_map do |call|
      call.request.settlements.map { |item| "#{item.lease_token} #{item.expected_messages}" }
    end
  end

  def acked
    broker.calls("AckBatch").flat_map { |call| call.request.acks.map(&:message_id) }
  end

  it "acks frames together that came together" do
    settle
    frames = receive_frames(3, 2500)
    expect(client.ack_many(frames[1] + frames[0])).to eq Array.new(2503)
    expect(settlements).to eq ["t1 2500", "t0 3"]
    expect(acked).to be_empty
  end

  it "acks one by one what is not whole" do
    settle
    first, lone, doubled = receive_frames(3, 1, 2)
    batch = [*first[0, 2], *lone, doubled[0], doubled[0]]
    expect(client.ack_many(batch)).to eq [nil] * 5
    expect(settlements).to be_empty
    expect(acked).to eq %w[t0-0 t0-1 t1-0 t2-0 t2-0]
  end

  it "falls back where something of a frame is gone" do
    settle("t0" => "LEASE_EXPIRED", "t1" => "QUEUE_NOT_FOUND")
    broker.script("AckBatch") do |_|
      results = [nil, item_error("LEASE_EXPIRED", "late")].map do |error|
        Fila::V1::ItemResult.new(error:)
      end
      Fila::V1::AckBatchResponse.new(results:)
    end
    outcomes = client.ack_many(receive_frames(2, 2, 2).flatten)
    expect(outcomes.map(&:class)).to eq [
      NilClass, Fila::LeaseExpiredError, Fila::QueueNotFoundError, Fila::QueueNotFoundError,
      NilClass, NilClass
    ]
    expect(outcomes[3].message_id).to eq "t1-1"
    expect(acked).to eq %w[t0-0 t0-1]
  end

  it "acks nothing after grants that could not be settled" do
    # Not "unavailable", which is tried again until the deadline and may end with that.
    broker.script("SettleGrants") { |_| refuse(:INTERNAL) }
    first, second = receive_frames(2, 2)
    outcomes = client.ack_many([*first, second[0]])
    expect(outcomes.map(&:class).uniq).to eq [Fila::InternalError]
    expect(acked).to be_empty
  end

  it "asks a broker once that knows no grants" do
    broker.script("SettleGrants") { |_| refuse(:UNIMPLEMENTED) }
    receive_frames(2, 2).each { |frame| expect(client.ack_many(frame)).to eq [nil, nil] }
    expect(broker.calls("SettleGrants").length).to eq 1
    expect(acked).to eq %w[t0-0 t0-1 t1-0 t1-1]
  end

  it "settles a grant by its token" do
    ends_at = Google::Protobuf::Timestamp.new(seconds: 1_900_000_000)
    broker.script("SettleGrants") do |_|
      result = Fila::V1::GrantResult.new(messages: 7, lease_expires_at: ends_at)
      Fila::V1::SettleGrantsResponse.new(results: [result])
    end
    expect(client.ack_grant("orders", "t", except_message_ids: %w[a b])).to eq 7
    expect(client.nack_grant("orders", "t", "no", retry_after_ms: 0, throttle_key: "k",
                                                  dead_letter: true)).to eq 7
    expect(client.extend_grant("orders", "t", 500)).to eq Time.at(1_900_000_000)
    ack, nack, extension = broker.calls("SettleGrants").map { |call| call.request.settlements[0] }
    expect([ack.action, ack.except_message_ids.to_a]).to eq [:ack, %w[a b]]
    expect(nack.nack).to eq Fila::V1::GrantNack.new(error: "no", retry_after_ms: 0,
                                                    throttle_key: "k", dead_letter: true)
    expect(extension["extend"].extend_ms).to eq 500
    settle("t" => "LEASE_EXPIRED")
    expect { client.ack_grant("orders", "t") }.to raise_error(Fila::LeaseExpiredError)
  end
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A delivered message says what the broker sent, and shows no more of itself than it should.
RSpec.describe Fila::ConsumeMessage do
  let(:raw) do
    Fila::V1::Message.new(
      id: "m-1", headers: { "tenant" => "acme" }, payload: "secret".b,
      metadata: Fila::V1::MessageMetadata.new(
        fairness_key: "acme", weight: 3, throttle_keys: %w[mail sms], attempt_count: 2,
        queue_id: "orders", lease_token: "token", last_error: "boom",
        failures: [Fila::V1::Failure.new(cause: :FAILURE_CAUSE_NACK, error: "boom")]
      ),
      timestamps: Fila::V1::MessageTimestamps.new(
        enqueued_at: Google::Protobuf::Timestamp.new(seconds: 5, nanos: 1_000_000),
        lease_expires_at: Google::Protobuf::Timestamp.new(seconds: 7)
      )
    )
  end

  it "has the fields of the delivery" do
    message = described_class.new(raw, nil)
    fields = %i[id queue headers payload fairness_key weight throttle_keys attempt_count
                lease_token last_error failures enqueued_at lease_expires_at]
    expect(fields.to_h { |name| [name, message.public_send(name)] }).to eq(
      id: "m-1", queue: "orders", headers: { "tenant" => "acme" }, payload: "secret".b,
      fairness_key: "acme", weight: 3, throttle_keys: %w[mail sms], attempt_count: 2,
      lease_token: "token", last_error: "boom",
      failures: [Fila::Failure.new(failed_at: nil, cause: :nack, error: "boom")],
      enqueued_at: Time.at(5, 1, :millisecond), lease_expires_at: Time.at(7)
    )
    expect(message.enqueued_at).to be_utc
    expect(message.payload.encoding).to eq Encoding::BINARY
  end

  it "reads a message that holds nothing" do
    message = described_class.new(Fila::V1::Message.new, nil)
    expect([message.id, message.queue, message.headers, message.throttle_keys, message.failures])
      .to eq ["", "", {}, [], []]
    expect([message.enqueued_at, message.lease_expires_at]).to eq [nil, nil]
  end

  it "shows neither payload nor headers by accident" do
    shown = described_class.new(raw, nil).then { |message| "#{message} #{message.inspect}" }
    expect(shown).to include '#<Fila::ConsumeMessage id="m-1" queue="orders"'
    expect(shown).not_to match(/secret|tenant|token/)
    message = Fila::EnqueueMessage.new(queue: "orders", payload: "secret", headers: { "a" => "b" })
    expect("#{message} #{message.inspect}").not_to match(/secret|"b"/)
  end

  it "shows no API key by accident" do
    key = Fila::NewApiKey.new(key_id: "k-1", secret: "s3cret")
    expect("#{key} #{key.inspect} #{[key]}").to include "k-1"
    expect("#{key} #{key.inspect} #{[key]}").not_to include "s3cret"
  end
end

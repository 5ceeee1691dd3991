# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What tests build answers and scripts from.
module Wire
  # A message as the broker would send it.
  def raw_message(id = "m-1", queue: "orders", **fields)
    metadata = Fila::V1::MessageMetadata.new(
      queue_id: queue, fairness_key: "default", lease_token: "token-of-#{id}"
    )
    Fila::V1::Message.new(id:, metadata:, **fields)
  end

  def frame(*ids, queue: "orders")
    messages = ids.map { |id| raw_message(id, queue:) }
    Fila::V1::ConsumeResponse.new(messages:)
  end

  # A frame as the broker sends it: one token, and a lease of so many seconds.
  def leased_frame(*ids, seconds:, queue: "orders")
    leased_at = Google::Protobuf::Timestamp.new(seconds: 1_900_000_000)
    lease_expires_at = Google::Protobuf::Timestamp.new(
      seconds: leased_at.seconds + seconds.to_i, nanos: ((seconds % 1) * 1e9).round
    )
    frame(*ids, queue:).tap do |sent|
      sent.messages.each do |message|
        message.metadata.lease_token = "lease-of-#{ids.first}"
        message.timestamps = Fila::V1::MessageTimestamps.new(leased_at:, lease_expires_at:)
      end
    end
  end

  def receive_response(*ids)
    Fila::V1::ReceiveResponse.new(messages: ids.map { |id| raw_message(id) })
  end

  # Fails a call, as the broker would.
  def refuse(code, text = "", reason = nil)
    number = GRPC::Core::StatusCodes.const_get(code)
    trailers = reason ? { "fila-reason" => reason } : {}
    raise GRPC::BadStatus.new_status_exception(number, text, trailers)
  end

  def item_error(reason, message)
    Fila::V1::ItemError.new(reason: :"ERROR_REASON_#{reason}", message:)
  end

  # Messages that the client gave back; each says so without an attempt being counted.
  def released(broker)
    nacks = broker.calls("NackBatch").flat_map { |call| call.request.nacks.to_a }
    nacks.each do |nack|
      expect(nack.has_retry_after_ms?).to be_truthy
      expect(nack.retry_after_ms).to eq 0
      expect(nack.lease_token).to match(/\A(token|lease)-of-/)
    end
    nacks.map(&:message_id)
  end
end

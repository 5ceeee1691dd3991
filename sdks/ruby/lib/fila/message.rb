# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What goes in and what comes out: messages to enqueue, their results, messages delivered.
#
# A delivered message keeps the protobuf object it came in and reads fields from it when asked. This
# module does no I/O: settling goes through the client that received the message.

require "fila/payload"

module Fila
  # One message for `Client#enqueue_many`; the fields are the arguments of `Client#enqueue`.
  EnqueueMessage = Struct.new(
    :queue, :payload, :text, :json, :headers, :fairness_key, :weight, :throttle_keys,
    :throttle_cost, :delay_ms, :deliver_at, :ttl_ms, :idempotency_key,
    keyword_init: true
  ) do
    # No payload and no headers: they must not end up in a log by accident.
    def inspect
      "#<#{self.class} queue=#{queue.inspect} fairness_key=#{fairness_key.inspect}>"
    end
    alias_method :to_s, :inspect
  end

  # What became of one message: its id, or the error that kept it from being stored.
  EnqueueResult = Struct.new(:message_id, :duplicate, :error, keyword_init: true) do
    # Whether the idempotency key was known, so that nothing new was stored.
    def duplicate?
      duplicate ? true : false
    end

    # The message's id. Raises the error if there is one.
    def unwrap
      error ? raise(error, cause: error.cause) : message_id
    end
  end

  # One failure of a message: when, why (`:nack`, `:expired`, or what dead-lettered it:
  # `:max_attempts`, `:hook`), and what was said, which the broker cuts to 256 bytes.
  Failure = Struct.new(:failed_at, :cause, :error, keyword_init: true)

  # A message as the broker holds it. `Client#peek` shows these; they cannot be settled.
  class Message
    def initialize(raw, client = nil, frame_size = 0)
      @raw = raw
      @client = client
      @frame_size = frame_size
    end

    # How many messages came together with it; 0 if nobody knows.
    # @api private
    attr_reader :frame_size

    def id
      @raw.id
    end

    def headers
      @headers ||= @raw.headers.to_h.freeze
    end

    # Bytes, in Ruby's binary encoding.
    def payload
      @raw.payload
    end

    # The payload as text in UTF-8. Raises EncodingError where it is not that.
    def text
      Payload.text(payload, id)
    end

    # What the payload says as JSON. Raises JSON::ParserError where it is not that.
    def json
      Payload.json(payload, id)
    end

    def queue
      metadata.queue_id
    end

    def fairness_key
      metadata.fairness_key
    end

    def weight
      metadata.weight
    end

    def throttle_keys
      metadata.throttle_keys.to_a
    end

    # Failed or expired deliveries so far: 0 on the first delivery.
    def attempt_count
      metadata.attempt_count
    end

    def lease_token
      metadata.lease_token
    end

    # What the most recent failure said; empty when nothing has failed.
    def last_error
      metadata.last_error
    end

    # Its last five failures, oldest first; a redrive keeps them.
    def failures
      @failures ||= Values.failures(metadata.failures)
    end

    # A Time, on the broker's clock.
    def enqueued_at
      Moment.of(@raw.timestamps&.enqueued_at)
    end

    # A Time, on the broker's clock; nil when the message is not leased.
    def lease_expires_at
      @lease_expires_at || Moment.of(@raw.timestamps&.lease_expires_at)
    end

    # No payload and no headers: they must not end up in a log by accident.
    def inspect
      "#<#{self.class} id=#{id.inspect} queue=#{queue.inspect} " \
        "fairness_key=#{fairness_key.inspect} attempt_count=#{attempt_count}>"
    end
    alias to_s inspect

    private

    def metadata
      @metadata ||= @raw.metadata || V1::MessageMetadata.new
    end
  end

  # A message leased to this client until `lease_expires_at`: ack, nack or extend it.
  class ConsumeMessage < Message
    # Reports that the message was processed; it is gone. Fails as `Client#ack` does.
    def ack
      @client.ack_message(self)
      settled
    end

    # Reports that processing failed. Fails as `Client#nack` does.
    def nack(error = "", retry_after_ms: nil, throttle_key: nil, dead_letter: false)
      @client.nack(queue, id, error, lease_token:, retry_after_ms:, throttle_key:, dead_letter:)
      settled
    end

    # Whether this object, or a list with it, was settled with success.
    def settled?
      @is_settled ? true : false
    end

    # @api private
    def settled
      @is_settled = true
      nil
    end

    # Prolongs the lease to `ms` from now, by default the queue's visibility timeout, and returns
    # its new end. Named as the RPC is, because every Ruby object has an `extend` already.
    def extend_lease(ms = nil)
      extended(@client.extend_lease(queue, id, ms, lease_token:))
    end

    # @api private
    def extended(lease_expires_at)
      @lease_expires_at = lease_expires_at
    end
  end

  # Timestamps of the contract as Time.
  module Moment
    module_function

    # nil where the timestamp is not set.
    def of(timestamp)
      timestamp && Time.at(timestamp.seconds, timestamp.nanos, :nanosecond, in: "UTC")
    end
  end
  private_constant :Moment
end

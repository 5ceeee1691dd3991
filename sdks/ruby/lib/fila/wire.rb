# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# The hot path's requests and answers as bytes. No I/O.
#
# Every batch request of the contract is one repeated field with the number 1, and on the wire a
# repeated field is its elements one after the other. So an item is encoded once, by the caller that
# has it, and a batch is the items joined: the size of a batch is known exactly before it is sent.

require "fila/arguments"
require "fila/errors"
require "fila/message"
require "fila/payload"
require "fila/proto"
require "fila/tracing"

module Fila
  # Items, batches of them, and the RPCs that take batches.
  module Wire
    BATCH_ITEMS_MAX = 1_000
    # Below gRPC's customary 4 MiB, so that any broker takes it. A larger message travels alone.
    BATCH_BYTES_MAX = 1024 * 1024

    SERVICE = "/fila.v1.FilaService/"
    REASON_PREFIX = "ERROR_REASON_"

    # One element of a batch: its bytes on the wire, what an error about it should name, and whether
    # it may be sent again after a failure that leaves open if it was applied. Of an ack also the
    # token of its delivery, and how many messages came together with it.
    Item = Struct.new(:data, :queue, :message_id, :is_repeatable, :lease_token, :frame_size) do
      # Those of an ack are made when they are wanted: acks of a whole frame never are.
      def data
        self[:data] ||= Wire.ack_data(self)
      end
    end

    # An RPC that takes many items and answers each on its own. `forgiven` are the errors that,
    # after a repeat, say that the first attempt was the one that did it.
    Batch = Struct.new(:method_path, :response, :read, :forgiven) do
      # What an item's outcome means after the item was sent before.
      def after_repeat(outcome)
        forgiven&.any? { |kind| outcome.is_a?(kind) } ? nil : outcome
      end

      # One value or Error per item, in order.
      def outcomes(response, items)
        results = response.results
        if results.length != items.length
          text = "the broker gave #{results.length} results for #{items.length} items"
          return items.map { |item| InternalError.new(text, queue: item.queue) }
        end
        results.zip(items).map do |result, item|
          result.error ? Wire.item_error(result.error, item) : read.call(result)
        end
      end
    end

    ENQUEUE = Batch.new(
      "#{SERVICE}EnqueueBatch", V1::EnqueueBatchResponse,
      ->(result) { EnqueueResult.new(message_id: result.message_id, duplicate: result.duplicate) }
    ).freeze
    # The message is gone, which is what an ack wants, and what a nack may have led to.
    ACK = Batch.new(
      "#{SERVICE}AckBatch", V1::AckBatchResponse, ->(_) {}, [MessageNotFoundError]
    ).freeze
    # And after a nack the delivery is over.
    NACK = Batch.new(
      "#{SERVICE}NackBatch", V1::NackBatchResponse, ->(_) {},
      [MessageNotFoundError, LeaseExpiredError]
    ).freeze
    EXTEND = Batch.new(
      "#{SERVICE}ExtendLease", V1::ExtendLeaseResponse,
      ->(result) { Moment.of(result.lease_expires_at) }
    ).freeze

    module_function

    # The typed error of one item. A reason that is newer than this SDK is a number.
    def item_error(error, item)
      reason = error.reason.to_s.delete_prefix(REASON_PREFIX)
      Errors.of_reason(reason, error.message, queue: item.queue, message_id: item.message_id)
    end

    # Yields the items in order, in batches that stay within both limits; none for no items.
    def split(items)
      batch = []
      size = 0
      items.each do |item|
        bytes = item.data.bytesize
        if batch.length == BATCH_ITEMS_MAX || (batch.any? && size + bytes > BATCH_BYTES_MAX)
          yield batch
          batch = []
          size = 0
        end
        batch << item
        size += bytes
      end
      yield batch if batch.any?
    end

    # The batch request that holds the items.
    def join(items)
      items.map(&:data).join
    end

    def enqueue_item(message, trace)
      request = V1::EnqueueRequest.new(
        queue: Arguments.required_text("queue", message.queue),
        headers: headers(message.headers || {}, trace),
        payload: Payload.bytes(message.payload, message.text, message.json),
        fairness_key: Arguments.text("fairness_key", message.fairness_key),
        weight: Arguments.small("weight", message.weight),
        throttle_keys: Arguments.texts("throttle_keys", message.throttle_keys || []),
        throttle_cost: Arguments.small("throttle_cost", message.throttle_cost),
        delay_ms: Arguments.whole("delay_ms", message.delay_ms),
        deliver_at: Arguments.timestamp("deliver_at", message.deliver_at),
        ttl_ms: Arguments.whole("ttl_ms", message.ttl_ms),
        idempotency_key: Arguments.text("idempotency_key", message.idempotency_key)
      )
      Item.new(element(request), request.queue, nil, !request.idempotency_key.empty?)
    end

    # A producer's own trace context wins: the message may continue a trace begun elsewhere.
    def headers(given, trace)
      headers = Arguments.headers(given)
      headers.key?(Tracing::TRACEPARENT) ? headers : trace.merge(headers)
    end

    def ack_item(queue, message_id, lease_token, frame_size = 0)
      queue = Arguments.required_text("queue", queue)
      message_id = Arguments.required_text("message_id", message_id)
      lease_token = Arguments.text("lease_token", lease_token)
      Item.new(nil, queue, message_id, !lease_token.empty?, lease_token, frame_size)
    end

    def ack_data(item)
      element(V1::AckRequest.new(queue: item.queue, message_id: item.message_id,
                                 lease_token: item.lease_token))
    end

    def nack_item(queue, message_id, error, lease_token, **how)
      settle_item(V1::NackRequest, queue, message_id, lease_token, **nack_fields(error, **how))
    end

    # What a nack says besides what it is about.
    def nack_fields(error, retry_after_ms: nil, throttle_key: nil, dead_letter: false)
      fields = {
        error: Arguments.text("error", error),
        throttle_key: Arguments.text("throttle_key", throttle_key),
        dead_letter: dead_letter ? true : false
      }
      # 0 is a value of its own here: back at once, no attempt counted.
      unless retry_after_ms.nil?
        fields[:retry_after_ms] = Arguments.whole("retry_after_ms", retry_after_ms)
      end
      fields
    end

    def extend_item(queue, message_id, lease_token, extend_ms)
      extend_ms = Arguments.whole("ms", extend_ms)
      settle_item(V1::LeaseExtension, queue, message_id, lease_token, extend_ms:)
    end

    # Gives back a message that nobody has seen: it is ready at once and no attempt is counted.
    def release_item(raw)
      metadata = raw.metadata
      nack_item(metadata.queue_id, raw.id, "", metadata.lease_token, retry_after_ms: 0)
    end

    def settle_item(kind, queue, message_id, lease_token, **fields)
      request = kind.new(
        queue: Arguments.required_text("queue", queue),
        message_id: Arguments.required_text("message_id", message_id),
        lease_token: Arguments.text("lease_token", lease_token),
        **fields
      )
      # The token ends with the delivery, so that a repeat of it does no harm.
      Item.new(element(request), request.queue, request.message_id, !request.lease_token.empty?)
    end

    # The tag of a length-delimited field 1, the length as a varint, the message.
    def element(request)
      data = request.class.encode(request)
      size = data.bytesize
      prefix = [0x0a]
      while size > 0x7f
        prefix << ((size & 0x7f) | 0x80)
        size >>= 7
      end
      prefix << size
      prefix.pack("C*") << data
    end
  end
  private_constant :Wire
end

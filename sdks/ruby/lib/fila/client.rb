# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# The client: connecting, producing, consuming and settling. Operating a broker is in admin.rb and
# access.rb; building, sending, batching and reading are the business of the modules below.

require "fila/access"
require "fila/admin"
require "fila/bulk"
require "fila/coalesce"
require "fila/connection"
require "fila/consumer"
require "fila/grants"
require "fila/lifetime"
require "fila/message"
require "fila/options"
require "fila/wire"

module Fila
  # A connection to a broker.
  #
  # Safe to share among threads: their concurrent calls travel in shared batches. Not across a fork:
  # create it in the child. It connects with its first call. `timeout` is the deadline in seconds of
  # every request, and `timeout:` of a method overrides it for one call; streams have none. Any
  # method can be interrupted, by Timeout for example; whether the call took effect is then unknown.
  class Client
    include Admin
    include Access
    include GrantCalls

    DEFAULT_TARGET = "127.0.0.1:5555"
    DEFAULT_TIMEOUT_S = 5.0
    # The broker keeps single payloads below 4 MiB; frames and pages hold many of them.
    DEFAULT_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
    # What a handler that takes 0.1 s works off before a default lease of 30 s ends. More would also
    # make a quiet tenant's message wait behind more messages that were delivered before it.
    DEFAULT_IN_FLIGHT_MAX = 256
    # A frame costs the broker some 0.3 ms whatever it holds; a hundred messages share that.
    DEFAULT_BATCH_SIZE = 100

    # A client. With a block, yields it, closes it afterwards and returns what the block returned.
    # Takes the arguments of `new`.
    def self.open(...)
      client = new(...)
      return client unless block_given?

      begin
        yield client
      ensure
        client.close
      end
    end

    def initialize(target = DEFAULT_TARGET, tls: nil, api_key: nil, timeout: DEFAULT_TIMEOUT_S,
                   max_message_bytes: DEFAULT_MESSAGE_BYTES_MAX, backoff: Backoff.new)
      @connection = Connection.new(target, tls:, api_key:, timeout:, max_message_bytes:, backoff:)
      @enqueues = Coalescer.new(Wire::ENQUEUE, @connection)
      @acks = Coalescer.new(Wire::ACK, @connection)
      @nacks = Coalescer.new(Wire::NACK, @connection)
      @extensions = Coalescer.new(Wire::EXTEND, @connection)
      Lifetime.watch(self, @connection)
    end

    def inspect
      "#<#{self.class} #{@connection.target.inspect}#{" closed" if @connection.closed?}>"
    end

    # Ends consumers and calls under way. Afterwards every call raises ClientClosedError. Harmless
    # twice. Not for signal handlers, where Ruby allows no locks: start a thread there.
    def close
      @connection.close
    end

    # Stores one message and returns its id. The payload is a String, taken as bytes; `deliver_at`
    # is a Time.
    #
    # UnavailableError, DeadlineExceededError and StorageFailedError leave open whether it was
    # stored. With an idempotency key it is sent again while the broker is away, up to the deadline.
    def enqueue(queue, payload = "", headers: {}, fairness_key: nil, weight: nil,
                throttle_keys: [], throttle_cost: nil, delay_ms: nil, deliver_at: nil, ttl_ms: nil,
                idempotency_key: nil, timeout: nil)
      message = EnqueueMessage.new(
        queue:, payload:, headers:, fairness_key:, weight:, throttle_keys:, throttle_cost:,
        delay_ms:, deliver_at:, ttl_ms:, idempotency_key:
      )
      item = Wire.enqueue_item(message, Tracing.current)
      @connection.retrying(item.is_repeatable, timeout) do |remaining|
        @enqueues.submit(item, remaining)
      end.message_id
    end

    # Stores many EnqueueMessages in order, possibly in several queues; one EnqueueResult for each.
    #
    # They travel in as few requests as fit, one after the other, each with its own deadline. A
    # request that fails as a whole fails its messages and all that follow; it is sent again while
    # the broker is away if all its messages have idempotency keys. A message that cannot be encoded
    # raises TypeError or ArgumentError; requests before its own have been sent by then.
    def enqueue_many(messages, timeout: nil)
      trace = Tracing.current
      items = messages.lazy.map { |message| Wire.enqueue_item(message, trace) }
      outcomes = Bulk.new(Wire::ENQUEUE, @connection).send_all(items, timeout)
      outcomes.map do |outcome|
        next outcome unless outcome.is_a?(Error)

        EnqueueResult.new(message_id: "", duplicate: false, error: outcome)
      end
    end

    # Messages of a queue as they become ready. With a block, yields each and closes the consumer
    # when the block is left; without one, returns a Consumer that is the caller's to close.
    #
    # At most `max_in_flight` are leased to it at a time, and they arrive at most `batch_size`
    # together; an unknown queue is reported by the first iteration.
    def consume(queue, max_in_flight: DEFAULT_IN_FLIGHT_MAX, batch_size: DEFAULT_BATCH_SIZE,
                visibility_timeout_ms: nil, &block)
      request = V1::ConsumeRequest.new(
        queue: Arguments.required_text("queue", queue),
        max_in_flight: Arguments.small("max_in_flight", max_in_flight),
        max_batch: Arguments.small("batch_size", batch_size),
        visibility_timeout_ms: Arguments.whole("visibility_timeout_ms", visibility_timeout_ms)
      )
      feed = Feed.new(@connection, request.queue, V1::ConsumeRequest.encode(request))
      consumer = Consumer.new(self, feed)
      return consumer unless block

      begin
        consumer.each(&block)
      ensure
        consumer.close
      end
    end

    # Leases up to `max_messages`, waiting up to `wait_ms` for the first; may return none.
    def receive(queue, max_messages: 1, wait_ms: 0, visibility_timeout_ms: nil, timeout: nil)
      request = V1::ReceiveRequest.new(
        queue: Arguments.required_text("queue", queue),
        max_messages: Arguments.small("max_messages", max_messages),
        wait_ms: Arguments.whole("wait_ms", wait_ms),
        visibility_timeout_ms: Arguments.whole("visibility_timeout_ms", visibility_timeout_ms)
      )
      # The broker may use all of the wait before it begins to answer.
      seconds = @connection.seconds(timeout) + (request.wait_ms / 1000.0)
      answer = @connection.call("#{Wire::SERVICE}Receive", V1::ReceiveRequest.encode(request),
                                V1::ReceiveResponse, seconds, queue:)
      messages = answer.messages
      messages.map { |raw| ConsumeMessage.new(raw, self, messages.length) }
    end

    # Reports that a leased message was processed; it is gone.
    #
    # Raises MessageNotFoundError when it is not leased, and LeaseExpiredError when the token is of
    # an earlier delivery. Without a token the message id alone decides. Never sent twice: after
    # UnavailableError the message is gone, or comes back when its lease ends.
    def ack(queue, message_id, lease_token: nil, timeout: nil)
      @acks.submit(Wire.ack_item(queue, message_id, lease_token), @connection.seconds(timeout))
    end

    # Acks many messages; nil or an error for each, in order. Those that came together, and are
    # acked together, travel as one.
    def ack_many(messages, timeout: nil)
      items = messages.map { |m| Wire.ack_item(m.queue, m.id, m.lease_token, m.frame_size) }
      found = Grants.ack(@connection, items) do |rpc, some|
        bulk = Bulk.new(rpc, @connection)
        outcomes = bulk.send_all(some, timeout)
        rpc.equal?(Grants::SETTLE) && bulk.failure ? outcomes.first : outcomes
      end
      return found unless found.is_a?(Error)

      items.map { |item| found.about(item.queue, item.message_id) }
    end

    # Acks a delivered message.
    # @api private
    def ack_message(message)
      item = Wire.ack_item(message.queue, message.id, message.lease_token, message.frame_size)
      @acks.submit(item, @connection.timeout)
    end

    # Reports that processing failed: the message is retried or dead-lettered.
    #
    # With `retry_after_ms` it is backpressure, not failure: the message comes back after that time
    # and no attempt is counted; `throttle_key` then lets nothing through until then, for anybody.
    # Fails as `ack` does.
    def nack(queue, message_id, error = "", lease_token: nil, retry_after_ms: nil,
             throttle_key: nil, timeout: nil)
      item = Wire.nack_item(queue, message_id, error, lease_token, retry_after_ms:, throttle_key:)
      @nacks.submit(item, @connection.seconds(timeout))
    end

    # Nacks many messages; nil or an error for each, in order.
    def nack_many(messages, error = "", timeout: nil)
      items = messages.lazy.map { |m| Wire.nack_item(m.queue, m.id, error, m.lease_token) }
      Bulk.new(Wire::NACK, @connection).send_all(items, timeout)
    end

    # Prolongs a lease to `ms` from now, by default the queue's visibility timeout, and returns its
    # new end. Fails as `ack` does. Named as the RPC is, because every Ruby object has an `extend`.
    def extend_lease(queue, message_id, ms = nil, lease_token: nil, timeout: nil)
      item = Wire.extend_item(queue, message_id, lease_token, ms)
      @extensions.submit(item, @connection.seconds(timeout))
    end
  end
end

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
require "fila/payload"
require "fila/readiness"
require "fila/settler"
require "fila/wire"
require "fila/worker"

module Fila
  # A connection to a broker.
  #
  # Safe to share among threads: their concurrent calls travel in shared batches. Not across a fork:
  # create it in the child. It connects with its first call. `timeout` is the deadline in seconds of
  # every request, and `timeout:` of a method overrides it for one call; streams have none. Any
  # method can be interrupted, by Timeout for example; whether the call took effect is then unknown.
  # enqueue, consume, ack and nack take what they are about by name, too: `queue:`, `payload:`,
  # `msg_id:` and `error:`, which win over what is given by position.
  class Client
    include Admin
    include Access
    include GrantCalls
    include Readiness

    DEFAULT_TARGET = "127.0.0.1:5555"
    DEFAULT_TIMEOUT_S = 5.0
    # The broker keeps single payloads below 4 MiB; frames and pages hold many of them.
    DEFAULT_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
    # What a handler that takes 0.4 s works off before a default lease of 30 s ends, and few enough
    # that a second consumer finds something to do.
    DEFAULT_IN_FLIGHT_MAX = 64
    # Two frames fill that: one is on its way while the other is handed out.
    DEFAULT_BATCH_SIZE = 32
    # What a worker does unless told otherwise: enough handlers to wait for others' answers, and
    # what an orchestrator grants a process that it stops, with some seconds to spare.
    DEFAULT_CONCURRENCY = 10
    DEFAULT_GRACE_S = 20
    # What calls may have waiting in the memory of a producer that is faster than its broker.
    DEFAULT_BUFFERED_BYTES_MAX = 32 * 1024 * 1024
    # As long as a request has: what can be answered is answered by then.
    DEFAULT_CLOSE_TIMEOUT_S = 5.0

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

    # `target` is "host:port", or several with commas between them or in an Array: the members of
    # one cluster, of which the first that answers is used. `api_key` may be callable: it is asked
    # for every call, by any thread, and what it raises fails that call. `interceptors` are those of
    # gRPC. `on_connection` is called with each ConnectionEvent, on a thread of the client.
    def initialize(target = DEFAULT_TARGET, tls: nil, api_key: nil, timeout: DEFAULT_TIMEOUT_S,
                   close_timeout: DEFAULT_CLOSE_TIMEOUT_S,
                   max_message_bytes: DEFAULT_MESSAGE_BYTES_MAX,
                   max_buffered_bytes: DEFAULT_BUFFERED_BYTES_MAX, backoff: Backoff.new,
                   interceptors: [], on_connection: nil)
      @connection = Connection.new(target, tls:, api_key:, timeout:, close_timeout:,
                                           max_message_bytes:, max_buffered_bytes:, backoff:,
                                           interceptors:, on_connection:)
      @enqueues = Coalescer.new(Wire::ENQUEUE, @connection)
      @acks = Coalescer.new(Wire::ACK, @connection)
      @nacks = Coalescer.new(Wire::NACK, @connection)
      @extensions = Coalescer.new(Wire::EXTEND, @connection)
      Lifetime.watch(self, @connection)
    end

    def inspect
      "#<#{self.class} #{@connection.target.inspect}#{" closed" if @connection.closed?}>"
    end

    # Waits until every enqueue, ack, nack and extension that was begun before, by any thread, has
    # been answered, whatever the answer. DeadlineExceededError if that takes longer.
    def flush(timeout: nil)
      @connection.check_open
      return if @connection.outbox.flush(@connection.seconds(timeout))

      raise DeadlineExceededError.new("not all calls were answered in time",
                                      code: "DEADLINE_EXCEEDED")
    end

    # Ends consumers, gives calls that were begun `close_timeout` seconds to be answered, and cuts
    # off the rest. From its beginning every other call raises ClientClosedError. Harmless twice; in
    # a signal handler, where Ruby allows no locks, it goes on in a thread and returns at once.
    def close
      @connection.close
    end

    # Stores one message and returns its id. The payload is a String, taken as bytes; in its place
    # `text` is stored as UTF-8, or `json` as JSON. nil is none of them. `deliver_at` is a Time.
    #
    # UnavailableError, DeadlineExceededError and StorageFailedError leave open whether it was
    # stored. With an idempotency key it is sent again while the broker is away, up to the deadline.
    def enqueue(name = nil, body = nil, queue: name, payload: body, text: nil, json: nil,
                headers: {}, fairness_key: nil, weight: nil, throttle_keys: [], throttle_cost: nil,
                delay_ms: nil, deliver_at: nil, ttl_ms: nil, idempotency_key: nil, timeout: nil)
      message = EnqueueMessage.new(
        queue:, payload:, text:, json:, headers:, fairness_key:, weight:, throttle_keys:,
        throttle_cost:, delay_ms:, deliver_at:, ttl_ms:, idempotency_key:
      )
      bytes = Payload.size(payload, text)
      @enqueues.submit(timeout, bytes) { Wire.enqueue_item(message, Tracing.current) }.message_id
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
    # together; an unknown queue is reported by the first iteration. Leases of what waits in the
    # consumer are extended, unless `extend_leases` is false; what it handed out is yours to extend.
    def consume(name = nil, queue: name, max_in_flight: DEFAULT_IN_FLIGHT_MAX,
                batch_size: DEFAULT_BATCH_SIZE, visibility_timeout_ms: nil, extend_leases: true,
                &block)
      request = consume_request(queue, max_in_flight, batch_size, visibility_timeout_ms)
      consumer = Consumer.new(self, Feed.new(@connection, request, extend_leases:))
      return consumer unless block

      begin
        consumer.each(&block)
      ensure
        consumer.close
      end
    end

    # A Worker, whose `run` has the block handle messages until it is stopped: `concurrency` at a
    # time, each in a thread. When the block returns, the message is acked unless it settled it
    # itself; when it raises, the message is nacked, as Backpressure and DeadLetter say. Leases are
    # extended meanwhile.
    #
    # With `batch_size` the block gets an Array of up to so many messages, of what is there.
    # `prefetch` messages are leased at a time, by default twice as many as are handled, and no
    # fewer than that. A handler that takes longer than `handler_timeout` seconds has failed, but
    # keeps its place until it ends: Ruby cannot end it. `grace` are the seconds that handlers get
    # after a stop. Each of `middleware`, outermost first, is called with the message or the Array,
    # and what comes next, which it calls with that. `on_event` is called with each WorkerEvent.
    def worker(queue, concurrency: DEFAULT_CONCURRENCY, batch_size: nil, prefetch: nil,
               visibility_timeout_ms: nil, handler_timeout: nil, grace: DEFAULT_GRACE_S,
               middleware: [], on_event: nil, &handler)
      raise ArgumentError, "a worker needs a block" if handler.nil?

      Arguments.positive("concurrency", concurrency)
      Arguments.positive("batch_size", batch_size) unless batch_size.nil?
      Arguments.seconds("handler_timeout", handler_timeout) unless handler_timeout.nil?
      Arguments.seconds("grace", grace)
      handled = concurrency * (batch_size || 1)
      prefetch = [Arguments.small("prefetch", prefetch || (2 * handled)), handled].max
      request = consume_request(queue, prefetch, [DEFAULT_BATCH_SIZE, batch_size || 1].max,
                                visibility_timeout_ms)
      settler = Settler.new(self, @connection, @acks, @nacks)
      Worker.new(settler, handler, concurrency:, batch_size:, prefetch:, handler_timeout:, grace:,
                                   middleware:, on_event:) do
        Feed.new(@connection, request, until_let_go: true)
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
      @connection.check_open
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
    # an earlier delivery. With a token it is sent again while the broker is away, up to the
    # deadline. Without one the message id alone decides, and it is never sent twice: after
    # UnavailableError the message is gone, or comes back when its lease ends.
    def ack(name = nil, id = nil, queue: name, msg_id: id, lease_token: nil, timeout: nil)
      @acks.submit(timeout) { Wire.ack_item(queue, msg_id, lease_token) }
    end

    # Acks many messages; nil or an error for each, in order. Those that came together, and are
    # acked together, travel as one.
    def ack_many(messages, timeout: nil)
      items = messages.map { |message| ack_item(message) }
      is_repeat = false
      found = Grants.ack(@connection, items) do |rpc, some|
        bulk = Bulk.new(rpc, @connection, is_repeat:)
        outcomes = bulk.send_all(some, timeout)
        is_repeat = bulk.repeat?
        rpc.equal?(Grants::SETTLE) && bulk.failure ? outcomes.first : outcomes
      end
      return settled(messages, found) unless found.is_a?(Error)

      items.map { |item| found.about(item.queue, item.message_id) }
    end

    # Acks a delivered message.
    # @api private
    def ack_message(message)
      @acks.submit(nil) { ack_item(message) }
    end

    # Reports that processing failed: the message is retried or dead-lettered.
    #
    # With `retry_after_ms` it is backpressure, not failure: the message comes back after that time
    # and no attempt is counted; `throttle_key` then lets nothing through until then, for anybody.
    # `dead_letter` says that trying again would not help: it is dead-lettered at once. Fails, and
    # is sent again, as `ack`.
    def nack(name = nil, id = nil, text = "", queue: name, msg_id: id, error: text,
             lease_token: nil, retry_after_ms: nil, throttle_key: nil, dead_letter: false,
             timeout: nil)
      @nacks.submit(timeout) do
        Wire.nack_item(queue, msg_id, error, lease_token,
                       retry_after_ms:, throttle_key:, dead_letter:)
      end
    end

    # Nacks many messages; nil or an error for each, in order.
    def nack_many(messages, error = "", timeout: nil)
      items = messages.lazy.map { |m| Wire.nack_item(m.queue, m.id, error, m.lease_token) }
      settled(messages, Bulk.new(Wire::NACK, @connection).send_all(items, timeout))
    end

    # Prolongs a lease to `ms` from now, by default the queue's visibility timeout, and returns its
    # new end. Fails, and is sent again, as `ack`. Named as the RPC is, because every Ruby object
    # has an `extend`.
    def extend_lease(queue, message_id, ms = nil, lease_token: nil, timeout: nil)
      @extensions.submit(timeout) { Wire.extend_item(queue, message_id, lease_token, ms) }
    end

    # Prolongs many leases to `ms` from now, by default the queues' visibility timeouts; the new end
    # of each or an error, in order.
    def extend_many(messages, ms = nil, timeout: nil)
      items = messages.lazy.map { |m| Wire.extend_item(m.queue, m.id, m.lease_token, ms) }
      outcomes = Bulk.new(Wire::EXTEND, @connection).send_all(items, timeout)
      messages.zip(outcomes) do |message, outcome|
        is_new = outcome.is_a?(Time) && message.is_a?(ConsumeMessage)
        message.extended(outcome) if is_new
      end
      outcomes
    end

    private

    def consume_request(queue, max_in_flight, batch_size, visibility_timeout_ms)
      V1::ConsumeRequest.new(
        queue: Arguments.required_text("queue", queue),
        max_in_flight: Arguments.small("max_in_flight", max_in_flight),
        max_batch: Arguments.small("batch_size", batch_size),
        visibility_timeout_ms: Arguments.whole("visibility_timeout_ms", visibility_timeout_ms)
      )
    end

    def ack_item(message)
      Wire.ack_item(message.queue, message.id, message.lease_token, message.frame_size)
    end

    # Messages that were delivered know that they need no other settlement.
    def settled(messages, outcomes)
      messages.zip(outcomes) do |message, outcome|
        message.settled if outcome.nil? && message.is_a?(ConsumeMessage)
      end
      outcomes
    end
  end
end

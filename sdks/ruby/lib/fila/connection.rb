# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What every call carries, how it is given up, and what its failures mean.
#
# Nothing here knows which calls exist or what they are for. Which channel they go through is the
# business of link.rb.

require "grpc"

require "fila/arguments"
require "fila/channel"
require "fila/credentials"
require "fila/errors"
require "fila/leases"
require "fila/lifetime"
require "fila/link"
require "fila/outbox"
require "fila/tracing"
require "fila/threads"

module Fila
  # A connection that threads share. It belongs to the process that made it.
  class Connection
    REASON_TRAILER = "fila-reason"
    CODES = GRPC::Core::StatusCodes.constants.to_h do |name|
      [GRPC::Core::StatusCodes.const_get(name), name.name]
    end.freeze
    # Requests are encoded before they come here.
    AS_IT_IS = :itself.to_proc
    # Cancelled calls end within milliseconds. Closing waits for them because the channel must not
    # go first, and bounds the wait because a shutdown must not hang.
    CLOSE_S = 2.0
    private_constant :REASON_TRAILER, :CODES, :AS_IT_IS, :CLOSE_S

    attr_reader :target, :timeout, :backoff, :threads, :leases, :outbox

    # `others` are those of Link.
    def initialize(target, tls:, api_key:, timeout:, close_timeout:, max_buffered_bytes:, backoff:,
                   **others)
      raise ArgumentError, "timeout must be positive, got #{timeout}" unless timeout.positive?

      Arguments.seconds("close_timeout", close_timeout)
      Arguments.positive("max_buffered_bytes", max_buffered_bytes)

      addresses = Channel.checked_addresses(target, tls)
      @target = addresses.join(",")
      @timeout = timeout
      @close_timeout = close_timeout
      @backoff = backoff
      @credentials = Credentials.new(api_key)
      @link = Link.new(addresses, tls:, backoff:, **others)
      @threads = Threads.new
      @leases = Leases.new(self)
      @outbox = Outbox.new(max_buffered_bytes)
      @process = Process.pid
      # Closing begins: nothing new is let in.
      @is_closing = false
      # Closing ends: what is still under way is cut off.
      @cut_off = Answer.new
      @has_grants = true
      @lock = Mutex.new
      @feeds = {}.compare_by_identity
      # Each operation with the API key that it carries.
      @under_way = {}.compare_by_identity
      Lifetime.began(self)
    end

    def inspect
      "#<#{self.class} #{target.inspect}>"
    end

    # Whether the broker settles grants: yes, until it says that it knows no such call.
    def grants?
      @has_grants
    end

    def forget_grants
      @has_grants = false
    end

    # Whether everything was cut off.
    def closed?
      @cut_off.given?
    end

    # Whether there is a connection at the moment.
    def connected?
      @link.connected?
    end

    # Whether this is a child of the process that made the connection; gRPC does not survive a fork.
    def forked?
      Process.pid != @process
    end

    def check_open
      raise ClientClosedError, "a client cannot be used after a fork; create one there" if forked?
      raise ClientClosedError if @is_closing
    end

    # What was begun before closing may still be done.
    def check_not_cut_off
      check_open if forked? || closed?
    end

    # gRPC sends a request that is too late, and with luck gets an answer.
    def check_time(timeout)
      return if timeout.positive?

      raise DeadlineExceededError.new("the deadline passed before the request was sent",
                                      code: "DEADLINE_EXCEEDED")
    end

    def seconds(timeout)
      timeout.nil? ? @timeout : timeout
    end

    # Sends one request from a thread of the application and returns the answer. A caller that is
    # raised in takes the call back.
    def call(method, request, response, timeout, queue: nil, message_id: nil)
      answer = Answer.new
      operation = Threads.uninterrupted do
        started = start(method, request, response, timeout, Tracing.current)
        @threads.run { answer.give(outcome(started)) }
        started
      end
      found = answer.wait
      return found unless found.is_a?(Error)

      error = found.about(queue, message_id)
      raise error, cause: error.cause
    ensure
      operation&.cancel unless answer.given?
    end

    # Sends one request from a thread of the client and returns the answer, or an Error.
    def send_here(method, request, response, timeout, trace)
      outcome(start(method, request, response, timeout, trace))
    rescue Error => e
      e
    end

    # Opens a stream of answers, with no deadline. Executing the operation passes them to the block.
    def stream(method, request, response, trace, &block)
      begin_operation do |key|
        @link.stub.server_streamer(method, request, AS_IT_IS, response.method(:decode),
                                   return_op: true, metadata: metadata(key, trace), &block)
      end
    end

    # Runs an operation to its end, on a thread of the client. Returns its answer, or an Error.
    def outcome(operation)
      operation.execute
    rescue GRPC::BadStatus => e
      failure(e, @lock.synchronize { @under_way[operation] })
    rescue GRPC::Core::CallError => e
      # What gRPC says of a stream that is cancelled before it began. Not a StandardError.
      closed? ? ClientClosedError.new : CancelledError.new(code: "CANCELLED", cause: e)
    rescue StandardError => e
      # Anything else, such as an answer that is no protobuf. Whoever waits must be told.
      closed? ? ClientClosedError.new : InternalError.new("#{e.class}: #{e.message}", cause: e)
    ensure
      @lock.synchronize { @under_way.delete(operation) }
    end

    # Yields the time that remains; again if the broker is away and it is safe.
    def retrying(is_repeatable, timeout)
      deadline = Clock.now + seconds(timeout)
      attempts = 0
      begin
        yield deadline - Clock.now
      rescue UnavailableError
        delay = @backoff.delay(attempts, rand)
        raise unless is_repeatable && delay < deadline - Clock.now

        attempts += 1
        wait(delay)
        raise unless Clock.now < deadline

        retry
      end
    end

    # Waits some seconds, or until everything is cut off.
    def wait(seconds)
      @cut_off.wait(seconds)
    end

    # Has something closed before the connection is.
    def attach(feed)
      @lock.synchronize do
        check_open
        @feeds[feed] = true
      end
    end

    def detach(feed)
      @lock.synchronize { @feeds.delete(feed) }
    end

    # Lets nothing new in, ends feeds, and cuts off what has not been answered in time. Harmless
    # twice, in a child process, and in a signal handler.
    def close
      Threads.outside_trap { shut } unless forked? || closed?
    end

    private

    def shut
      feeds = @lock.synchronize do
        @is_closing = true
        @feeds.keys
      end
      feeds.map { |feed| Thread.new { feed.close } }.each(&:join)
      @outbox.flush(@close_timeout)
      return unless @cut_off.give(true)

      @outbox.close
      @leases.close
      @lock.synchronize { @under_way.keys }.each(&:cancel)
      @threads.close(CLOSE_S)
      @link.close
      Lifetime.ended(self)
    end

    def start(method, request, response, timeout, trace)
      check_not_cut_off
      check_time(timeout)
      begin_operation do |key|
        @link.stub.request_response(method, request, AS_IT_IS, response.method(:decode),
                                    return_op: true, deadline: Time.now + timeout,
                                    metadata: metadata(key, trace))
      end
    end

    # Asks for the key before it takes the lock: whoever gives it may call anything.
    def begin_operation
      key = @credentials.key
      @lock.synchronize do
        check_not_cut_off
        operation = yield key
        @under_way[operation] = key
        operation
      end
    end

    # An object of its own for each call, because interceptors write to it.
    def metadata(key, trace)
      key ? { "authorization" => "Bearer #{key}", **trace } : trace.dup
    end

    # What a failed call means. Its cause is kept, unless the peer's text holds the API key.
    def failure(error, key)
      return ClientClosedError.new if closed?

      # gRPC hands out bytes, and the text may name a queue in any script.
      text = error.details.to_s.dup.force_encoding(Encoding::UTF_8).scrub
      is_secret = key && error.message.include?(key)
      reason = Array(error.metadata[REASON_TRAILER]).first
      code = CODES.fetch(error.code, "UNKNOWN")
      Errors.of_status(code, reason, Credentials.hidden(text, key),
                       cause: is_secret ? nil : error)
    end
  end
  private_constant :Connection
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A stream of leased messages that outlives its connection; what is behind a Consumer.
#
#   open --frame--> unread --> application            close from anywhere ends it
#    ^                |
#    '-- wait <-- UNAVAILABLE, or the broker ended the stream       any other error is final
#
# A worker reads the stream. It reads a frame only when the application has taken all messages of
# the one before and wants another, so gRPC's flow control and the broker's credit (`max_in_flight`)
# see how fast the application really is. What was sent but never handed out goes back on close:
# otherwise every restart of a worker process would hide those messages until their leases end, and
# count an attempt that nobody made.

require "fila/reconnect"
require "fila/wire"

module Fila
  # Raw messages of one queue, for any number of threads.
  class Feed
    METHOD = "#{Wire::SERVICE}Consume".freeze
    # Giving messages back is a courtesy: their leases end anyway, so it may not hold up a shutdown.
    # First come the frames that have arrived, until none came for a moment; then the end of the
    # stream; then the request that gives all of them back. Each is bounded.
    QUIET_S = 0.05
    DRAIN_S = 0.5
    RELEASE_TIMEOUT_S = 1.0
    private_constant :METHOD, :QUIET_S, :DRAIN_S, :RELEASE_TIMEOUT_S

    attr_reader :queue

    def initialize(connection, queue, request)
      @connection = connection
      @queue = queue
      @request = request
      @reconnect = Reconnect.new(queue, connection.backoff)
      # Guards all that follows.
      @lock = Mutex.new
      @arrived = ConditionVariable.new
      @wanted = ConditionVariable.new
      @unread = []
      @frame_size = 0
      @trace = Tracing::NOTHING
      @is_wanted = false
      @is_reading = false
      @reading_since = 0.0
      @is_running = false
      @is_closed = false
      @operation = nil
      @failure = nil
      connection.attach(self)
    end

    # The next message, and how many came in its frame; nil when the feed is closed or some seconds
    # passed without one.
    def pop(seconds)
      deadline = seconds && (Clock.now + seconds)
      @lock.synchronize do
        until closed?
          return [@unread.shift, @frame_size] if @unread.any?

          raise_failure if @failure

          want
          remaining = deadline && (deadline - Clock.now)
          return nil if remaining && remaining <= 0

          @arrived.wait(@lock, remaining)
        end
      end
    end

    def closed?
      @is_closed || @connection.closed?
    end

    # Ends the stream and gives back what was not handed out. Harmless twice, and after a fork.
    def close
      return if @connection.forked?

      operation, is_reading = @lock.synchronize do
        return if @is_closed

        @is_closed = true
        @arrived.broadcast
        @wanted.broadcast
        [@operation, @is_reading]
      end
      end_stream(operation, is_reading) if operation
      release
      @connection.detach(self)
    end

    private

    def want
      @connection.check_open
      # A stream that is opened for this is part of what the application is doing.
      @trace = Tracing.current
      @is_wanted = true
      @wanted.signal
      return if @is_running

      Workers.uninterrupted do
        @is_running = true
        @connection.workers.run { read }
      end
    end

    # An object of its own for each thread that asks.
    def raise_failure
      error = @failure.about(@queue, nil)
      raise error, cause: error.cause
    end

    # --- On a worker -----------------------------------------------------------------------------

    def read
      until closed?
        error = read_stream
        pause(@reconnect.delay(error)) unless closed?
      end
    rescue Error => e
      @lock.synchronize { @failure = e }
    ensure
      @lock.synchronize do
        @is_running = false
        @arrived.broadcast
      end
    end

    # Reads one stream to its end. Returns the error that ended it, if any.
    def read_stream
      operation = @lock.synchronize do
        return nil if @is_closed

        @reconnect.opened
        reading
        @operation = @connection.stream(METHOD, @request, V1::ConsumeResponse, @trace) do |frame|
          received(frame)
        end
      end
      outcome = @connection.outcome(operation)
      outcome if outcome.is_a?(Error)
    rescue ClientClosedError
      nil
    ensure
      @lock.synchronize { @operation = nil }
    end

    def received(frame)
      @lock.synchronize do
        @reconnect.received
        # Of the frame that is handed out: another is read when nothing is left of it.
        @frame_size = frame.messages.length if @unread.empty?
        @unread.concat(frame.messages.to_a)
        # A frame without messages does not answer who waits for one.
        @is_wanted &&= @unread.empty?
        @is_reading = false
        @arrived.broadcast
        @wanted.wait(@lock) until @is_closed || (@is_wanted && @unread.empty?)
        reading
      end
    end

    def reading
      @is_reading = true
      @reading_since = Clock.now
    end

    def pause(seconds)
      deadline = Clock.now + seconds
      @lock.synchronize do
        until @is_closed || (remaining = deadline - Clock.now) <= 0
          @wanted.wait(@lock, remaining)
        end
      end
    end

    # --- Closing ---------------------------------------------------------------------------------

    def end_stream(operation, is_reading)
      # Who waits for a frame has taken all before it.
      wait_until(DRAIN_S) { quiet? } unless is_reading
    ensure
      operation.cancel
      wait_until(RELEASE_TIMEOUT_S) { !@is_running }
    end

    def quiet?
      @operation.nil? || (@is_reading && Clock.now - @reading_since > QUIET_S)
    end

    def wait_until(seconds)
      deadline = Clock.now + seconds
      @lock.synchronize do
        until yield || (remaining = deadline - Clock.now) <= 0
          @arrived.wait(@lock, [remaining, QUIET_S].min)
        end
      end
    end

    def release
      messages = @lock.synchronize { @unread.slice!(0..) }
      return if messages.empty? || @connection.closed?

      timeout = [RELEASE_TIMEOUT_S, @connection.timeout].min
      Wire.split(messages.map { |raw| Wire.release_item(raw) }) do |batch|
        @connection.call(Wire::NACK.method_path, Wire.join(batch), Wire::NACK.response, timeout)
      end
    rescue Error => e
      Fila.logger.debug("messages not given back, their leases will end: #{e.message}")
    end
  end
  private_constant :Feed
end

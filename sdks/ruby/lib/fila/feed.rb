# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A stream of leased messages that outlives its connection; what is behind a Consumer and a Worker.
#
#   open --frame--> unread --> application            close from anywhere ends it
#    ^                |
#    '-- wait <-- UNAVAILABLE, or the broker ended the stream       any other error is final
#
# A thread of the client reads frames as they come, because only then is it known when a lease
# began; the broker's credit (`max_in_flight`) bounds how many messages wait here. They are kept
# while they wait, and those whose leases ended all the same are dropped. What was sent but never
# handed out goes back on close: otherwise every restart of a process would hide those messages
# until their leases end, and count an attempt that nobody made.

require "fila/leases"
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
    # A stream that was lost and is open for so long is there again, even if nothing comes.
    WORKS_S = 1.0
    private_constant :METHOD, :QUIET_S, :DRAIN_S, :RELEASE_TIMEOUT_S, :WORKS_S

    attr_reader :queue

    # Leases of what waits here are extended, unless told otherwise; with `until_let_go` those of
    # what was handed out, too, until `let_go`.
    def initialize(connection, request, extend_leases: true, until_let_go: false)
      @connection = connection
      @leases = connection.leases
      @queue = request.queue
      @request = V1::ConsumeRequest.encode(request)
      @extend_leases = extend_leases
      @until_let_go = until_let_go
      # Guards all that follows.
      @lock = Mutex.new
      # Something arrived, or the feed changed otherwise.
      @changed = ConditionVariable.new
      @reconnect = Reconnect.new(queue, connection.backoff)
      # Messages with their leases.
      @unread = []
      @trace = Tracing::NOTHING
      @arrived_at = 0.0
      @is_running = false
      @is_closed = false
      @is_released = false
      @operation = nil
      @failure = nil
      connection.attach(self)
    end

    # Up to so many messages, each with its lease, of what is there; waits for the first. None when
    # the feed is closed, or some seconds passed without one.
    def take(max, seconds = nil)
      deadline = seconds && (Clock.now + seconds)
      @lock.synchronize do
        until closed?
          taken = hand_out(max)
          return taken if taken.any?

          raise_failure if @failure

          want
          remaining = deadline && (deadline - Clock.now)
          break if remaining && remaining <= 0

          @changed.wait(@lock, remaining)
        end
      end
      []
    end

    # A message that was handed out is done.
    def let_go(lease, raw)
      @leases.let_go(lease, raw)
    end

    def closed?
      @is_closed || @connection.closed?
    end

    # Ends the stream and gives back what was not handed out. Harmless twice, and after a fork.
    def close
      Threads.outside_trap { shut } unless @connection.forked?
    end

    private

    # Opens the stream with the first message that is asked for.
    def want
      @connection.check_not_cut_off
      # A stream that is opened for this is part of what the application is doing.
      @trace = Tracing.current
      return if @is_running

      Threads.uninterrupted do
        @is_running = true
        @connection.threads.run { read }
      end
    end

    def hand_out(max)
      now = Clock.now
      taken = []
      dropped = 0
      while taken.length < max && (raw, lease = @unread.shift)
        is_over = lease.over?(raw, now)
        is_over ? dropped += 1 : taken << [raw, lease]
        @leases.let_go(lease, raw) if is_over || !@until_let_go
      end
      dropped(dropped)
      taken
    end

    def dropped(count)
      return if count.zero?

      Fila.logger.debug("dropped #{count} messages of queue #{@queue.inspect}: their leases ended")
    end

    # An object of its own for each thread that asks.
    def raise_failure
      error = @failure.about(@queue, nil)
      raise error, cause: error.cause
    end

    # --- On a thread of the client ---------------------------------------------------------------

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
        @changed.broadcast
      end
    end

    # Reads one stream to its end. Returns the error that ended it, if any.
    def read_stream
      operation = @lock.synchronize do
        return nil if @is_closed

        @reconnect.opened
        @arrived_at = Clock.now
        @operation = @connection.stream(METHOD, @request, V1::ConsumeResponse, @trace) do |frame|
          received(frame)
        end
      end
      @connection.threads.run { watch(operation) } if @reconnect.lost?
      outcome = @connection.outcome(operation)
      outcome if outcome.is_a?(Error)
    rescue ClientClosedError
      nil
    rescue UnavailableError => e
      # Nobody could be called at all.
      e
    ensure
      @lock.synchronize do
        @operation = nil
        @changed.broadcast
      end
    end

    def received(frame)
      messages = frame.messages.to_a
      lease = @leases.begin(messages, is_kept: @extend_leases) if messages.any?
      @lock.synchronize do
        @reconnect.received
        next unless lease
        next @leases.forget(lease) if @is_released

        @arrived_at = Clock.now
        drop_ended
        messages.each { |raw| @unread << [raw, lease] }
        @changed.broadcast
      end
    end

    # The broker sends more in place of messages whose leases ended, whoever takes them or not.
    def drop_ended
      now = Clock.now
      count = 0
      while (raw, lease = @unread.first) && lease.over?(raw, now)
        @unread.shift
        @leases.let_go(lease, raw)
        count += 1
      end
      dropped(count)
    end

    # gRPC tells a reader that its stream is open only with the first frame, which may be long in
    # coming.
    def watch(operation)
      @lock.synchronize do
        until (is_over = !@operation.equal?(operation))
          remaining = @arrived_at + WORKS_S - Clock.now
          break if remaining <= 0 && @connection.connected?

          @changed.wait(@lock, remaining.positive? ? remaining : WORKS_S)
        end
        @reconnect.works unless is_over
      end
    end

    def pause(seconds)
      deadline = Clock.now + seconds
      @lock.synchronize do
        until @is_closed || (remaining = deadline - Clock.now) <= 0
          @changed.wait(@lock, remaining)
        end
      end
    end

    # --- Closing ---------------------------------------------------------------------------------

    def shut
      operation = @lock.synchronize do
        return if @is_closed

        @is_closed = true
        @changed.broadcast
        @operation
      end
      end_stream(operation) if operation
      release
      @connection.detach(self)
    end

    def end_stream(operation)
      wait_until(DRAIN_S) { @operation.nil? || Clock.now - @arrived_at > QUIET_S }
    ensure
      operation.cancel
      wait_until(RELEASE_TIMEOUT_S) { !@is_running }
    end

    def wait_until(seconds)
      deadline = Clock.now + seconds
      @lock.synchronize do
        until yield || (remaining = deadline - Clock.now) <= 0
          @changed.wait(@lock, [remaining, QUIET_S].min)
        end
      end
    end

    def release
      held = @lock.synchronize do
        @is_released = true
        @unread.slice!(0..)
      end
      now = Clock.now
      items = held.filter_map { |raw, lease| Wire.release_item(raw) unless lease.over?(raw, now) }
      deadline = now + [RELEASE_TIMEOUT_S, @connection.timeout].min
      Wire.split(items) do |batch|
        @connection.call(Wire::NACK.method_path, Wire.join(batch), Wire::NACK.response,
                         deadline - Clock.now)
      end
    rescue Error => e
      Fila.logger.debug("messages not given back, their leases will end: #{e.message}")
    ensure
      held&.each { |raw, lease| @leases.let_go(lease, raw) }
    end
  end
  private_constant :Feed
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A consumer, a number of handlers, and a rule for each way in which a handler can end.
#
#   feed --take--> handler thread --verdict--> settler --outcomes--> run: events
#                        '-- too slow, or the grace is over --^
#
# Each handler has a thread, which takes messages by itself. The thread that called `run` handles
# nothing: it waits for what has been settled and tells it, gives up on handlers that are too slow,
# and ends everything. Leases are kept until a message is settled. Ruby cannot end a handler safely
# from outside, so one that is given up keeps its thread, and what it gives is ignored.

require "fila/feed"
require "fila/handling"
require "fila/message"
require "fila/settler"
require "fila/threads"

module Fila
  # Handles the messages of a queue until it is stopped. Workers come from `Client#worker`.
  class Worker
    SIGNALS = %w[TERM INT].freeze
    # Nothing happens after so long; but Ruby cannot wait until infinity.
    IDLE_S = 3600
    private_constant :SIGNALS, :IDLE_S

    # The feed is made when the worker runs. `batch_size` is nil for a handler of single messages.
    def initialize(settler, handler, concurrency:, batch_size:, prefetch:,
                   handler_timeout:, grace:, middleware:, on_event:, &open_feed)
      @settler = settler
      @open_feed = open_feed
      @concurrency = concurrency
      @batch_size = batch_size
      @prefetch = prefetch
      @handler_timeout = handler_timeout
      @grace = grace
      @on_event = on_event
      @handler = middleware.reverse.inject(handler) do |following, layer|
        ->(message) { layer.call(message, following) }
      end
      @signals = 0
      @supervisor = nil
      # Guards all that follows.
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @feed = nil
      @is_feed_closing = false
      @is_feed_closed = false
      @threads = 0
      # What has a handler now, given up or not.
      @running = {}.compare_by_identity
      # How many messages are being settled; and what has been, but was not told yet.
      @unsettled = 0
      @settled = []
      # When the grace ends, once the worker is to stop.
      @stop_at = nil
      @has_ended = false
      @failure = nil
    end

    # Handles messages until the worker is stopped, and returns when all of them are settled. With
    # `signals`, and in the main thread, TERM and INT stop it, and again end its grace.
    #
    # Raises what ends a consumer, such as QueueNotFoundError, after its handlers are done.
    def run(signals: true)
      @feed = @lock.synchronize do
        raise "a worker runs once; make another" if @feed

        @open_feed.call
      end
      @supervisor = Thread.current
      trapping(signals) { supervise }
      @lock.synchronize { raise @failure, cause: @failure.cause if @failure }
      nil
    end

    # Stops taking messages and gives back those that no handler has seen. Handlers have `grace`
    # seconds to end, by default the worker's; the messages of those that have not are given back.
    # Returns at once. From any thread, a handler's too, and from a signal handler.
    def stop(grace: nil)
      stop_at = Clock.now + (grace || @grace)
      Threads.outside_trap { @lock.synchronize { stop_by(stop_at) } }
    end

    def inspect
      "#<#{self.class} concurrency=#{@concurrency}#{" stopping" if @stop_at}>"
    end

    private

    def stop_by(time)
      @stop_at = [@stop_at, time].compact.min
      @changed.broadcast
    end

    # --- The thread that runs the worker ---------------------------------------------------------

    def trapping(signals)
      before = {}
      if signals && Thread.current == Thread.main
        SIGNALS.each do |name|
          before[name] = trap(name) { stop(grace: (@signals += 1) > 1 ? 0 : nil) }
        end
      end
      yield
    ensure
      before.each { |name, handler| trap(name, handler || "DEFAULT") }
    end

    def supervise
      @lock.synchronize { @concurrency.times { start } unless @stop_at }
      until @has_ended
        settled, late, left = @lock.synchronize { wait }
        settled.each { |handling, verdict, rows| tell(handling, verdict, rows) }
        late.each { |handling| time_out(handling) }
        left.each { |handling| decide(handling, Verdict.given_back) }
      end
    ensure
      abandon unless @has_ended
    end

    # Waits for something to do: what was settled, handlings that are too slow, and those whose
    # grace is over. The lock is held.
    def wait
      loop do
        close_feed if @stop_at
        now = Clock.now
        late, in_time = undecided.partition { |handling| deadline_of(handling) <= now }
        left = grace_over?(now) ? in_time : []
        found = [@settled.slice!(0..), late, left]
        @has_ended = found.all?(&:empty?) && all_settled?(now)
        return found if @has_ended || found.any?(&:any?)

        @changed.wait(@lock, next_time(in_time) - now)
      end
    end

    def undecided
      @running.each_key.reject(&:decided)
    end

    def grace_over?(now)
      !@stop_at.nil? && @stop_at <= now
    end

    def all_settled?(now)
      @is_feed_closed && @unsettled.zero? && (@threads.zero? || grace_over?(now))
    end

    # When there is something to do that nobody tells of.
    def next_time(handlings)
      times = handlings.map { |handling| deadline_of(handling) }
      times << @stop_at if @stop_at && @stop_at > Clock.now
      [*times, Clock.now + IDLE_S].min
    end

    def deadline_of(handling)
      @handler_timeout ? handling.began_at + @handler_timeout : Float::INFINITY
    end

    # Beside this thread, because it may take a moment.
    def close_feed
      return if @is_feed_closing

      @is_feed_closing = true
      feed = @feed
      Thread.new do
        feed.close
      ensure
        @lock.synchronize do
          @is_feed_closed = true
          @changed.broadcast
        end
      end
    end

    def time_out(handling)
      verdict = Verdict.late(@handler_timeout)
      return unless decide(handling, verdict)

      handling.messages.each { |message| emit(:timed_out, message, handling.seconds, nil) }
    end

    # Something was raised in this thread: nothing is waited for.
    def abandon
      left = @lock.synchronize do
        @has_ended = true
        stop_by(Clock.now)
        close_feed
        @running.keys
      end
      left.each { |handling| decide(handling, Verdict.given_back) }
    end

    # --- The threads of handlers -----------------------------------------------------------------

    # The lock is held.
    def start
      @threads += 1
      thread = Thread.new { work }
      thread.name = "fila handler"
    end

    def work
      loop do
        found = @feed.take(@batch_size || 1)
        break if found.empty?

        handle(*found.transpose)
      end
    rescue ClientClosedError
      nil
    rescue Error => e
      @lock.synchronize { @failure ||= e }
    ensure
      ended
    end

    def ended
      @lock.synchronize do
        @threads -= 1
        # Its feed was closed or failed; or somebody ended this thread, and another takes its place.
        if @failure || @feed.closed?
          stop_by(Clock.now + @grace)
        else
          start
        end
      end
    end

    def handle(raw, leases)
      messages = raw.zip(leases).map { |each, lease| @settler.message(each, lease.size) }
      handling = Handling.new(messages, leases, Clock.now)
      is_too_late = @lock.synchronize do
        @running[handling] = raw
        # Who supervises has to look at it in time.
        @changed.broadcast if @handler_timeout
        @has_ended
      end
      verdict = Verdict.of(ThreadError.new("the handler's thread was ended"))
      verdict = is_too_late ? Verdict.given_back : verdict_of(messages)
    ensure
      decide(handling, verdict)
      @lock.synchronize do
        @running.delete(handling)
        @changed.broadcast
      end
    end

    def verdict_of(messages)
      Tracing.processing(messages.first) { @handler.call(@batch_size ? messages : messages.first) }
      Verdict.of(nil)
    rescue Exception => e # rubocop:disable Lint/RescueException -- whatever it is, others go on
      Verdict.of(e)
    end

    # --- Settling --------------------------------------------------------------------------------

    # Settles what a handling is about, unless that was done before; says whether it was now.
    def decide(handling, verdict)
      rows = @lock.synchronize do
        return false if handling.decided

        handling.decided = true
        handling.ended_at = Clock.now
        raw = @running.fetch(handling)
        rows = handling.messages.zip(handling.leases, raw)
        own, rest = rows.partition { |message,| message.settled? }
        own.each { |_, lease, each| @feed.let_go(lease, each) }
        room_for(rest.length)
        @unsettled += rest.length
        rest
      end
      settle(handling, verdict, rows) if rows.any?
      true
    end

    # Handlers wait while too much is being settled. Who supervises does not: it is who makes room.
    def room_for(count)
      return if Thread.current == @supervisor

      @changed.wait(@lock) until @unsettled.zero? || @unsettled + count <= @prefetch
    end

    def settle(handling, verdict, rows)
      @settler.settle(rows.map(&:first), verdict.nack) do |outcomes|
        rows.each { |_, lease, raw| @feed.let_go(lease, raw) }
        @lock.synchronize do
          @unsettled -= rows.length
          @settled << [handling, verdict, rows.map(&:first).zip(outcomes)]
          @changed.broadcast
        end
      end
    end

    def tell(handling, verdict, rows)
      rows.each do |message, failure|
        if failure.nil?
          emit(verdict.kind, message, handling.seconds, verdict.error)
        else
          Fila.logger.warn("message #{message.id} of queue #{message.queue.inspect} was not " \
                           "settled, it comes back: #{failure.message}")
          emit(:settle_failed, message, handling.seconds, failure)
        end
      end
    end

    def emit(kind, message, seconds, error)
      @on_event&.call(WorkerEvent.new(kind:, message:, seconds:, error:))
    rescue StandardError => e
      Fila.logger.warn("on_event failed: #{e.class}: #{e.message}")
    end
  end
end

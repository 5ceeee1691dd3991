# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Concurrent calls of one client share batch requests. Nothing lingers.
#
# A few requests may be under way at a time. A call that finds a free slot goes out at once; calls
# that find none wait, and the next free slot takes all of them (within a batch's limits). So
# batches grow only because calls piled up while the broker was busy with earlier ones.
#
# Batches are sent by the client's threads, never by one of the callers: a caller may leave at any
# moment, by its deadline or because something was raised in its thread, and must not take the
# others with it. What `Thread#raise` and `Timeout` raise can be put off; what a signal's trap
# raises cannot. So a slot is written down under the name of its caller until a thread has it, and
# leaving can be done again.

require "fila/connection"
require "fila/grants"
require "fila/wire"

module Fila
  # Batches the items of concurrent callers for one RPC.
  class Coalescer
    # Two keep the broker busy while an answer is on its way; with more, batches get smaller.
    REQUESTS_UNDER_WAY_MAX = 2
    NOT_SENT = "no answer to earlier requests came in time; this one was not sent"
    NOT_ANSWERED = "no answer came in time; the outcome is unknown"
    private_constant :NOT_SENT, :NOT_ANSWERED

    # One caller. `is_gone` and `is_sent` are guarded by the coalescer's lock.
    Seat = Struct.new(:item, :deadline, :trace, :answer, :is_gone, :is_sent)

    # The answer of a caller who does not wait: it is passed on.
    Posted = Struct.new(:answered) do
      def give(outcome)
        answered.call(outcome)
      end

      def wait; end
    end
    private_constant :Posted

    def initialize(rpc, connection)
      @rpc = rpc
      @connection = connection
      @lock = Mutex.new
      @waiting = []
      # Who got a slot, and what became of it: it is :promised until a thread :serves. Nobody waits
      # while one is free.
      @slots = {}.compare_by_identity
    end

    # Sends the item that the block makes, with others if there are any, when there is room for
    # about so many bytes; again if the broker is away and that is safe. Raises the item's error, or
    # the batch's.
    def submit(timeout, bytes = 0)
      timeout = @connection.seconds(timeout)
      @connection.check_open
      @connection.check_time(timeout)
      deadline = Clock.now + timeout
      outbox = @connection.outbox
      outbox.promise(bytes, deadline) do |call|
        item = yield
        outbox.weigh(call, item.data.bytesize)
        attempts(item, deadline)
      end
    end

    # Sends one item as `submit` does, while the caller goes on. The block gets the outcome, an
    # Error if there is one, on a thread of the client; it must not wait for anything there.
    def post(item, &answered)
      @connection.check_open
      deadline = Clock.now + @connection.timeout
      outbox = @connection.outbox
      call = Object.new
      outbox.enter(call, item.data.bytesize, deadline)
      finish = lambda do |outcome|
        outbox.leave(call)
        answered.call(outcome)
      end
      begin_posted(item, deadline) do |outcome|
        next finish.call(outcome) unless outcome.is_a?(UnavailableError) && item.is_repeatable

        @connection.threads.run { finish.call(outcome_of_more(item, deadline, outcome)) }
      end
    rescue Exception # rubocop:disable Lint/RescueException -- nobody is going to answer
      outbox&.leave(call)
      raise
    end

    # Removes the next batch from a queue, and with it callers who no longer wait.
    def self.take(waiting)
      batch = []
      size = 0
      while batch.length < Wire::BATCH_ITEMS_MAX && (seat = waiting.first)
        unless seat.is_gone
          size += seat.item.data.bytesize
          break if batch.any? && size > Wire::BATCH_BYTES_MAX

          batch << seat
        end
        waiting.shift
      end
      batch
    end

    private

    # What became of the first attempt is known already if there was one.
    def attempts(item, deadline, failure = nil)
      count = 0
      @connection.retrying(item.is_repeatable, deadline - Clock.now) do |remaining|
        count += 1
        raise failure if failure && count == 1

        attempt(item, remaining)
      rescue Error => e
        raise unless count > 1 && @rpc.after_repeat(e).nil?
      end
    end

    def outcome_of_more(item, deadline, failure)
      attempts(item, deadline, failure)
    rescue Error => e
      e
    end

    def begin_posted(item, deadline, &answered)
      seat = Seat.new(item, deadline, Tracing.current, Posted.new(answered), false, false)
      Threads.uninterrupted { enter(seat) }
    rescue Exception # rubocop:disable Lint/RescueException -- a signal came in the middle of it
      Threads.surely { leave(seat) }
      raise
    end

    def attempt(item, timeout)
      @connection.check_time(timeout)
      seat = Seat.new(item, Clock.now + timeout, Tracing.current, Answer.new, false, false)
      begin
        Threads.uninterrupted { enter(seat) }
        seat.answer.wait(timeout)
      ensure
        outcome = Threads.surely { leave(seat) }
      end
      raise outcome, cause: outcome.cause if outcome.is_a?(Error)

      outcome
    end

    def enter(seat)
      @lock.synchronize do
        @waiting << seat
        return if @slots.size >= REQUESTS_UNDER_WAY_MAX

        @slots[seat] = :promised
      end
      @connection.threads.run { serve(seat) }
    end

    # The caller's outcome, which is an error if there is none by now.
    def leave(seat)
      text = @lock.synchronize do
        seat.is_gone = true
        hand_on(seat) if @slots[seat] == :promised
        seat.is_sent ? NOT_ANSWERED : NOT_SENT
      end
      item = seat.item
      seat.answer.give(
        DeadlineExceededError.new(text, code: "DEADLINE_EXCEEDED",
                                        queue: item.queue, message_id: item.message_id)
      )
      seat.answer.wait
    end

    # Gives a slot that no thread has begun to serve to whoever waits, or back. The lock is held. A
    # thread too many does no harm.
    def hand_on(seat)
      heir = @waiting.find { |other| !other.is_gone }
      if heir
        @slots[heir] = :promised
        @connection.threads.run { serve(heir) }
      end
      @slots.delete(seat)
    end

    # Sends batches until nobody waits.
    def serve(seat)
      return unless @lock.synchronize { @slots[seat] == :promised && (@slots[seat] = :served) }

      batch = next_batch(seat)
      until batch.empty?
        outcomes = outcomes_of(batch)
        following = next_batch(seat)
        batch.zip(outcomes) { |each, outcome| each.answer.give(outcome) }
        batch = following
      end
    end

    def next_batch(seat)
      @lock.synchronize do
        batch = Coalescer.take(@waiting)
        @slots.delete(seat) if batch.empty?
        batch.each { |each| each.is_sent = true }
      end
    end

    def outcomes_of(batch)
      items = batch.map(&:item)
      # The most patient caller decides; the others leave at their own deadlines. The request can
      # carry one trace; each message has its own in its headers.
      deadline = batch.map(&:deadline).max
      send = lambda do |rpc, some|
        answer = @connection.send_here(rpc.method_path, Wire.join(some), rpc.response,
                                       deadline - Clock.now, batch.first.trace)
        answer.is_a?(Error) ? answer : rpc.outcomes(answer, some)
      end
      is_ack = @rpc.equal?(Wire::ACK)
      found = is_ack ? Grants.ack(@connection, items, &send) : send.call(@rpc, items)
      return found unless found.is_a?(Error)

      items.map { |item| found.about(item.queue, item.message_id) }
    end
  end
  private_constant :Coalescer
end

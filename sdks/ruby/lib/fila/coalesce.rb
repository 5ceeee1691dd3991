# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Concurrent calls of one client share batch requests. Nothing lingers.
#
# A few requests may be under way at a time. A call that finds a free slot goes out at once; calls
# that find none wait, and the next free slot takes all of them (within a batch's limits). So
# batches grow only because calls piled up while the broker was busy with earlier ones.
#
# Batches are sent by workers, never by one of the callers: a caller may leave at any moment, by its
# deadline or because something was raised in its thread, and must not take the others with it. What
# `Thread#raise` and `Timeout` raise can be put off; what a signal's trap raises cannot. So a slot
# is written down under the name of its caller until a worker has it, and leaving can be done again.

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

    def initialize(rpc, connection)
      @rpc = rpc
      @connection = connection
      @lock = Mutex.new
      @waiting = []
      # Who got a slot, and what became of it: it is :promised until a worker :serves. Nobody waits
      # while one is free.
      @slots = {}.compare_by_identity
    end

    # Sends one item, with others if there are any. Raises the item's error, or the batch's.
    def submit(item, timeout)
      @connection.check_open
      @connection.check_time(timeout)
      seat = Seat.new(item, Clock.now + timeout, Tracing.current, Answer.new, false, false)
      begin
        Workers.uninterrupted { enter(seat) }
        seat.answer.wait(timeout)
      ensure
        outcome = Workers.uninterrupted { leave_for_good(seat) }
      end
      raise outcome, cause: outcome.cause if outcome.is_a?(Error)

      outcome
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

    def enter(seat)
      @lock.synchronize do
        @waiting << seat
        return if @slots.size >= REQUESTS_UNDER_WAY_MAX

        @slots[seat] = :promised
      end
      @connection.workers.run { serve(seat) }
    end

    def leave_for_good(seat)
      leave(seat)
    rescue Exception # rubocop:disable Lint/RescueException -- a signal came in the middle of it
      leave(seat)
      raise
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

    # Gives a slot that no worker has begun to serve to whoever waits, or back. The lock is held. A
    # worker too many does no harm.
    def hand_on(seat)
      heir = @waiting.find { |other| !other.is_gone }
      if heir
        @slots[heir] = :promised
        @connection.workers.run { serve(heir) }
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
        answer = @connection.send_from_worker(rpc.method_path, Wire.join(some), rpc.response,
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

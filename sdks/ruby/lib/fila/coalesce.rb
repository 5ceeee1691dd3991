# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Concurrent calls of one client share batch requests. Nothing lingers.
#
# A few requests may be under way at a time. A call that finds a free slot goes out at once, alone;
# calls that find none wait, and the next free slot takes all of them (within a batch's limits). So
# batches grow only because calls piled up while the broker was busy with earlier ones.
#
# Batches are sent by workers, never by one of the callers: a caller may leave at any moment, by its
# deadline or because something was raised in its thread, and must not take the others with it.

require "fila/connection"
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
      # Nobody waits while a slot is free.
      @waiting = []
      @free_slots = REQUESTS_UNDER_WAY_MAX
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
        outcome = leave(seat)
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
        if @free_slots.zero?
          @waiting << seat
          return
        end
        @free_slots -= 1
        seat.is_sent = true
      end
      @connection.workers.run { serve([seat]) }
    end

    # The caller's outcome, which is an error if there is none by now.
    def leave(seat)
      text = @lock.synchronize do
        seat.is_gone = true
        seat.is_sent ? NOT_ANSWERED : NOT_SENT
      end
      item = seat.item
      seat.answer.give(
        DeadlineExceededError.new(text, code: "DEADLINE_EXCEEDED",
                                        queue: item.queue, message_id: item.message_id)
      )
      seat.answer.wait
    end

    # Sends batches until nobody waits.
    def serve(batch)
      until batch.empty?
        outcomes = outcomes_of(batch)
        following = next_batch
        batch.zip(outcomes) { |seat, outcome| seat.answer.give(outcome) }
        batch = following
      end
    end

    def next_batch
      @lock.synchronize do
        batch = Coalescer.take(@waiting)
        @free_slots += 1 if batch.empty?
        batch.each { |seat| seat.is_sent = true }
      end
    end

    def outcomes_of(batch)
      items = batch.map(&:item)
      # The most patient caller decides; the others leave at their own deadlines. The request can
      # carry one trace; each message has its own in its headers.
      remaining = batch.map(&:deadline).max - Clock.now
      answer = @connection.send_from_worker(@rpc.method_path, Wire.join(items), @rpc.response,
                                            remaining, batch.first.trace)
      return @rpc.outcomes(answer, items) unless answer.is_a?(Error)

      items.map { |item| answer.about(item.queue, item.message_id) }
    end
  end
  private_constant :Coalescer
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What a client has promised: calls that were begun and not answered yet, and how much they hold.
#
# Flushing and closing wait for them; a producer that is faster than its broker waits for room.
# Nothing here sends anything.

require "fila/errors"
require "fila/threads"

module Fila
  # The unanswered calls of one client, each with its encoded size.
  class Outbox
    NO_ROOM = "too much waits for the broker already; this one was not sent"
    private_constant :NO_ROOM

    def initialize(bytes_max)
      @bytes_max = bytes_max
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @calls = {}.compare_by_identity
      @bytes = 0
      @is_closed = false
    end

    # Runs a call, which is promised until then. It begins when there is room for it: one call may
    # go beyond the bound, so that any message can be sent. Yields what `weigh` wants.
    def promise(bytes, deadline)
      call = Object.new
      begin
        enter(call, bytes, deadline)
        yield call
      ensure
        Threads.uninterrupted { leave(call) }
      end
    rescue Exception # rubocop:disable Lint/RescueException
      # Again: what a signal's trap raises may come before that, or in the middle of it.
      Threads.uninterrupted { leave(call) }
      raise
    end

    # Begins a call when there is room. DeadlineExceededError when there is none in time.
    def enter(call, bytes, deadline)
      @lock.synchronize do
        while @bytes >= @bytes_max
          raise ClientClosedError if @is_closed

          remaining = deadline - Clock.now
          raise DeadlineExceededError.new(NO_ROOM, code: "DEADLINE_EXCEEDED") if remaining <= 0

          @changed.wait(@lock, remaining)
        end
        hold(call, bytes)
      end
    end

    # The size of a call, now that it is encoded.
    def weigh(call, bytes)
      @lock.synchronize { hold(call, bytes) }
    end

    # A call was answered, or was given up. Harmless twice.
    def leave(call)
      @lock.synchronize do
        hold(call, 0)
        @calls.delete(call)
        @changed.broadcast
      end
    end

    # Waits up to some seconds for the calls that were begun before; says whether all are answered.
    def flush(seconds)
      deadline = Clock.now + seconds
      @lock.synchronize do
        calls = @calls.keys
        until (calls = calls.select { |call| @calls.key?(call) }).empty?
          remaining = deadline - Clock.now
          return false if remaining <= 0

          @changed.wait(@lock, remaining)
        end
      end
      true
    end

    # Who waits for room waits in vain.
    def close
      @lock.synchronize do
        @is_closed = true
        @changed.broadcast
      end
    end

    private

    def hold(call, bytes)
      before = @calls.fetch(call, 0)
      @calls[call] = bytes
      @bytes += bytes - before
    rescue Exception # rubocop:disable Lint/RescueException -- a signal came in the middle of it
      @bytes = @calls.each_value.sum
      raise
    end
  end
  private_constant :Outbox
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What the handler of a worker has done, and does: how `handled` knows. It decides nothing.
class Handled
  def initialize
    @lock = Mutex.new
    @changed = ConditionVariable.new
    @handled = []
    @batches = []
    @running = 0
    @most_running = 0
  end

  # Notes that messages are being handled, and when that has really ended.
  def during(messages)
    @lock.synchronize do
      @batches << messages.length
      @running += 1
      @most_running = [@most_running, @running].max
    end
    yield
  ensure
    @lock.synchronize do
      @running -= 1
      @handled.concat(messages.map { |message| shown_message(message) })
      @changed.broadcast
    end
  end

  # Once so many have ended, or some seconds have passed.
  def shown(count, seconds)
    deadline = now + seconds
    @lock.synchronize do
      while @handled.length < count && (remaining = deadline - now).positive?
        @changed.wait(@lock, remaining)
      end
      { handled: @handled.dup, running: @running, most_running: @most_running,
        batches: @batches.dup }
    end
  end

  private

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def shown_message(message)
    { message_id: message.id, payload: [message.payload].pack("m0"),
      attempt_count: message.attempt_count }
  end
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Several threads that take messages from one consumer: who got which. It acks nothing.
class Shared
  def initialize(consumer, readers)
    @consumer = consumer
    @taken = Array.new(readers) { [] }
    @lock = Mutex.new
    @changed = ConditionVariable.new
    @failure = nil
  end

  # What each reader got, once all of them together have so many, or so many seconds passed. Raises
  # the first error of a reader.
  def take(count, seconds)
    deadline = now + seconds
    @taken.each { |messages| Thread.new { read(messages, count) } }
    @lock.synchronize do
      until @failure || whole?(count) || (remaining = deadline - now) <= 0
        @changed.wait(@lock, remaining)
      end
      raise @failure if @failure

      @taken.map(&:dup)
    end
  end

  private

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def whole?(count)
    @taken.sum(&:length) >= count
  end

  def read(messages, count)
    until @lock.synchronize { whole?(count) } || (message = @consumer.pop).nil?
      @lock.synchronize do
        messages << message
        @changed.broadcast
      end
    end
  rescue Fila::Error => e
    @lock.synchronize do
      @failure ||= e
      @changed.broadcast
    end
  end
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# The threads that gRPC runs on, so that it never runs on a thread of the application.
#
# Ruby gives up on something that blocks by raising in its thread: `Timeout`, Ctrl-C, `Thread#raise`
# and `Thread#kill` all do. A thread that is raised in while gRPC waits leaves gRPC's queue with an
# event nobody takes, and the process aborts (grpc/grpc issue 42541). Here the caller waits for an
# Answer, which is plain Ruby and can be interrupted at any time, and nobody raises in a thread of
# these. It also lets a caller leave a shared request without touching the others.
module Fila
  # Runs blocks on threads that are kept for the next one.
  class Threads
    # What one busy client needs between two calls; more than that end when they are done.
    IDLE_MAX = 4
    private_constant :IDLE_MAX

    def initialize
      @lock = Mutex.new
      @work = Thread::Queue.new
      @threads = {}.compare_by_identity
      # Threads that wait for work, or are about to, and are not promised to a block in the queue.
      @idle = 0
    end

    # Yields with interrupts put off, for steps that belong together; never for anything that waits.
    def self.uninterrupted(&block)
      Thread.handle_interrupt(Object => :never, &block)
    end

    # Runs a step that leaves something behind, and that can be done again from its beginning: it
    # is, if what a signal's trap raises, which cannot be put off, came in the middle of it.
    def self.surely(&block)
      uninterrupted(&block)
    rescue Exception # rubocop:disable Lint/RescueException
      uninterrupted(&block)
      raise
    end

    # Runs the block here; or, in a signal's trap, where Ruby allows no locks, on a thread of its
    # own. Nobody waits for that one: what it wants may be held by who was interrupted.
    def self.outside_trap(&block)
      is_trap = begin
        Mutex.new.synchronize { false }
      rescue ThreadError
        true
      end
      is_trap ? Thread.new(&block) : yield
      nil
    end

    # Runs the block, at once, on some thread. It must not raise.
    def run(&block)
      @lock.synchronize do
        # A call that began while the client was closing. It is soon over, but must be told.
        return Thread.new(&block) if @work.closed?

        if @idle.zero?
          start
        else
          @idle -= 1
        end
        @work << block
      end
    end

    # Waits up to some seconds for all blocks to end.
    def close(seconds)
      threads = @lock.synchronize do
        @work.close
        @threads.keys
      end
      deadline = Clock.now + seconds
      threads.each { |thread| thread.join([deadline - Clock.now, 0].max) }
    end

    private

    def start
      thread = Thread.new { work }
      thread.name = "fila"
      @threads[thread] = true
    end

    def work
      # A thread inherits what its creator has put off, and could not be ended at exit.
      Thread.handle_interrupt(Object => :immediate) do
        while (block = @work.pop)
          block.call
          break unless stay?
        end
      end
    ensure
      @lock.synchronize { @threads.delete(Thread.current) }
    end

    def stay?
      @lock.synchronize { @idle < IDLE_MAX && (@idle += 1) }
    end
  end

  # A value that another thread is going to give.
  class Answer
    def initialize
      @lock = Mutex.new
      @given = ConditionVariable.new
      @is_given = false
      @value = nil
    end

    # Only the first value counts; says whether this was the first.
    def give(value)
      @lock.synchronize do
        return false if @is_given

        @value = value
        @is_given = true
        @given.broadcast
      end
      true
    end

    # Takes no lock: whether the value was there a moment ago is all that anybody can know.
    def given?
      @is_given
    end

    # The value; or nil when some seconds passed without one.
    def wait(seconds = nil)
      deadline = seconds && (Clock.now + seconds)
      @lock.synchronize do
        until @is_given
          remaining = deadline && (deadline - Clock.now)
          return nil if remaining && remaining <= 0

          @given.wait(@lock, remaining)
        end
        @value
      end
    end
  end

  # Time that never steps back.
  module Clock
    module_function

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
  private_constant :Threads, :Answer, :Clock
end

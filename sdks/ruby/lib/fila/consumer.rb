# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What an application iterates over. The stream behind it is the business of feed.rb, which knows
# nothing of this object: so a consumer that the application drops can be collected, and ends.

require "fila/arguments"
require "fila/feed"
require "fila/lifetime"
require "fila/message"

module Fila
  # The messages of a queue as the broker leases them: Enumerable, endless until it is closed.
  #
  # Any number of threads may take messages from it, and any thread may close it. When the
  # connection is lost the iteration goes on with a new one. It raises QueueNotFoundError,
  # PermissionDeniedError and whatever else trying again would not cure. Leaving an iteration with
  # `break` or `first` keeps the consumer open; `Client#consume` with a block closes it.
  class Consumer
    include Enumerable

    # Consumers come from `Client#consume`.
    def initialize(client, feed)
      @client = client
      @feed = feed
      Lifetime.watch(self, feed)
    end

    # Yields each message as it becomes ready, until the consumer is closed.
    def each
      return enum_for(:each) unless block_given?

      while (message = pop)
        yield message
      end
      self
    end

    # Yields Arrays of what is there: at least one message, at most `max`. Nothing lingers.
    def batches(max)
      Arguments.positive("max", max)
      return enum_for(:batches, max) unless block_given?

      while (found = @feed.take(max)).any?
        yield(found.map { |raw, lease| ConsumeMessage.new(raw, @client, lease.size) })
      end
      self
    end

    # The next message. nil when the consumer is closed, or when `timeout` seconds passed without
    # one; a later call gets what arrives then.
    def pop(timeout: nil)
      raw, lease = @feed.take(1, timeout).first
      raw && ConsumeMessage.new(raw, @client, lease.size)
    end

    # Whether the consumer was closed, by itself or with its client.
    def closed?
      @feed.closed?
    end

    # Ends the stream and gives back what was not handed out. Harmless twice; in a signal handler it
    # returns at once.
    def close
      @feed.close
    end

    def inspect
      "#<#{self.class} queue=#{@feed.queue.inspect}#{" closed" if closed?}>"
    end
  end
end

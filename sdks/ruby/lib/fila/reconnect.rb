# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# When to open a lost stream again, when not to, and what the log says of it. No I/O.

require "fila/errors"
require "fila/threads"

module Fila
  # Decides what the end of a stream means, and how long to wait before the next one.
  class Reconnect
    def initialize(queue, backoff)
      @queue = queue
      @backoff = backoff
      @opened_at = 0.0
      @attempts = 0
      @is_lost = false
    end

    # Whether the log has said that the stream was lost, and not yet that it is there again.
    def lost?
      @is_lost
    end

    def opened
      @opened_at = Clock.now
    end

    def received
      @attempts = 0
      works
    end

    # The stream is there. However many attempts it took, the log says so once.
    def works
      return unless @is_lost

      @is_lost = false
      Fila.logger.warn("consume stream of queue #{@queue.inspect} is there again")
    end

    # The wait after a stream ended; nil is an end without an error. Raises a final error.
    def delay(error)
      raise error, cause: error.cause unless error.nil? || passing?(error)

      # A stream that lasted was a good one, even if its queue was empty all the time.
      @attempts = 0 if Clock.now - @opened_at > @backoff.maximum
      lost(error)
      @attempts += 1
      @backoff.delay(@attempts - 1, rand)
    end

    private

    def lost(error)
      return if @is_lost

      @is_lost = true
      why = error.nil? ? "the broker ended it" : error.message
      Fila.logger.warn("consume stream of queue #{@queue.inspect} was lost, reconnecting: #{why}")
    end

    # A broker that stops cancels streams. Nobody here did: a closed consumer does not ask.
    def passing?(error)
      error.is_a?(UnavailableError) || error.is_a?(CancelledError)
    end
  end
  private_constant :Reconnect
end

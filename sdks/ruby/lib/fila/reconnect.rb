# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# When to open a lost stream again, and when not to. No I/O.

require "fila/errors"
require "fila/workers"

module Fila
  # Decides what the end of a stream means, and how long to wait before the next one.
  class Reconnect
    def initialize(queue, backoff)
      @queue = queue
      @backoff = backoff
      @opened_at = 0.0
      @attempts = 0
    end

    def opened
      @opened_at = Clock.now
    end

    def received
      @attempts = 0
    end

    # The wait after a stream ended; nil is an end without an error. Raises a final error.
    def delay(error)
      raise error, cause: error.cause unless error.nil? || passing?(error)

      # A stream that lasted was a good one, even if its queue was empty all the time.
      @attempts = 0 if Clock.now - @opened_at > @backoff.maximum
      if @attempts.zero?
        why = error.nil? ? "the broker ended it" : error.message
        Fila.logger.warn("consume stream of queue #{@queue.inspect} was lost, reconnecting: #{why}")
      end
      @attempts += 1
      @backoff.delay(@attempts - 1, rand)
    end

    private

    # A broker that stops cancels streams. Nobody here did: a closed consumer does not ask.
    def passing?(error)
      error.is_a?(UnavailableError) || error.is_a?(CancelledError)
    end
  end
  private_constant :Reconnect
end

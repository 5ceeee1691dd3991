# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What a handler may raise, what its end means for its messages, and what is told of it. No I/O.

require "fila/arguments"

module Fila
  # Raised by a handler: not now. The message comes back after `retry_after` seconds and no attempt
  # is counted; `throttle_key`, one of the message's, then lets nothing through until then.
  class Backpressure < StandardError
    attr_reader :retry_after, :throttle_key

    def initialize(retry_after, throttle_key: nil, reason: "")
      @retry_after = Arguments.seconds("retry_after", retry_after)
      @throttle_key = Arguments.text("throttle_key", throttle_key)
      super(reason)
    end
  end

  # Raised by a handler: trying again would not help. The message becomes a dead letter at once.
  class DeadLetter < StandardError
    def initialize(reason = "")
      super
    end
  end

  # What happened to a message of a worker. `kind` is :acked, :nacked, :dead_lettered, :put_off,
  # :given_back, :timed_out or :settle_failed, `seconds` how long it was handled, `error` what the
  # handler raised, or what kept the message from being settled; nil if nothing did.
  WorkerEvent = Struct.new(:kind, :message, :seconds, :error, keyword_init: true)

  # The kind of an end, and what is said to the broker: nil is an ack, otherwise the fields of a
  # nack. `error` is what the handler raised.
  Verdict = Struct.new(:kind, :nack, :error) do
    # What a handler's end means; nil is an end without an error.
    def self.of(error)
      case error
      when nil then new(:acked)
      when Backpressure
        retry_after_ms = (error.retry_after * 1000).ceil
        nack = { error: Verdict.text(error.message), retry_after_ms:,
                 throttle_key: error.throttle_key }
        new(:put_off, nack, error)
      when DeadLetter
        new(:dead_lettered, { error: Verdict.text(error.message), dead_letter: true }, error)
      else
        new(:nacked, { error: Verdict.text("#{error.class}: ", error) }, error)
      end
    end

    def self.late(seconds)
      error = format("handler timed out after %g s", seconds)
      new(:nacked, { error: })
    end

    def self.given_back
      new(:given_back, { error: "", retry_after_ms: 0 })
    end

    # In UTF-8, and no longer than the broker keeps.
    def self.text(start, error = nil)
      text = "#{start}#{error&.message}"
      text = text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace).scrub
      text.byteslice(0, Verdict::TEXT_BYTES_MAX).scrub("")
    rescue StandardError
      # An error whose message fails, or does not go with its class's name.
      start.b.scrub("?").force_encoding(Encoding::UTF_8).scrub("?")
    end
  end
  Verdict::TEXT_BYTES_MAX = 4096

  # Messages that one handler has, each with its lease. The worker's lock guards what changes.
  Handling = Struct.new(:messages, :leases, :began_at, :ended_at, :decided) do
    def seconds
      ended_at - began_at
    end
  end
  private_constant :Verdict
  private_constant :Handling
end

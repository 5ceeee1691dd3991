# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Calls that are too large for one request: split, sent one after the other, put together again.
#
# Never two requests at once, so that messages are stored in the order of the list; and nothing is
# sent after a request that failed as a whole.

require "fila/connection"
require "fila/wire"

module Fila
  # Sends many items through a batch RPC.
  class Bulk
    # `is_repeat` says that the items may have been sent before, in another way.
    def initialize(rpc, connection, is_repeat: false)
      @rpc = rpc
      @connection = connection
      @is_repeat = is_repeat
    end

    # Whether anything was sent more than once.
    def repeat?
      @is_repeat
    end

    # What a request of the latest call failed with, if one did.
    attr_reader :failure

    # Sends all items and returns one value or Error for each, in order.
    def send_all(items, timeout)
      @connection.check_open
      @failure = nil
      outcomes = []
      @connection.outbox.promise(0, Float::INFINITY) do
        Wire.split(items) do |batch|
          @failure, found = @failure ? [@failure, about(@failure, batch)] : send_one(batch, timeout)
          outcomes.concat(found)
        end
      end
      outcomes
    end

    private

    # What keeps the rest from being sent, if anything, and the outcomes of the batch.
    def send_one(batch, timeout)
      request = Wire.join(batch)
      attempts = 0
      answer = @connection.retrying(batch.all?(&:is_repeatable), timeout) do |remaining|
        attempts += 1
        @connection.call(@rpc.method_path, request, @rpc.response, remaining)
      end
      @is_repeat ||= attempts > 1
      outcomes = @rpc.outcomes(answer, batch)
      outcomes.map! { |outcome| @rpc.after_repeat(outcome) } if @is_repeat
      [nil, outcomes]
    rescue Error => e
      text = "not sent, because an earlier request of this call failed: #{e.message}"
      [e.class.new(text, code: e.code, reason: e.reason, cause: e.cause), about(e, batch)]
    end

    def about(error, batch)
      batch.map { |item| error.about(item.queue, item.message_id) }
    end
  end
  private_constant :Bulk
end

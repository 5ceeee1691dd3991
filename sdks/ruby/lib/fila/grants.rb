# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Whole frames: what is acked together, and came together, travels as one settlement of a grant.
#
# A grant is what one delivery frame leases; its messages share a lease token. Acks of all of them
# are the same as one settlement that expects exactly so many. Where the broker refuses that, since
# some were settled before or their leases ended, each goes as an ack of its own and gets its own
# answer. So nobody can tell the two ways apart, but for what they cost.

require "fila/arguments"
require "fila/bulk"
require "fila/wire"

module Fila
  # Settlements of grants, and acks that make up whole ones. No I/O.
  module Grants
    # How many messages were settled, and when extended leases end.
    Settled = Struct.new(:messages, :lease_expires_at)

    SETTLE = Wire::Batch.new(
      "#{Wire::SERVICE}SettleGrants", V1::SettleGrantsResponse,
      ->(result) { Settled.new(result.messages, Moment.of(result.lease_expires_at)) }
    ).freeze

    module_function

    def item(queue, lease_token, except_message_ids, expected: 0, **action)
      request = V1::GrantSettlement.new(
        queue: Arguments.required_text("queue", queue),
        lease_token: Arguments.required_text("lease_token", lease_token),
        except_message_ids: Arguments.texts("except_message_ids", except_message_ids),
        expected_messages: expected,
        **action
      )
      Wire::Item.new(Wire.element(request), request.queue, nil, false)
    end

    # Sends acks, those of whole frames by their grants; nil or an Error for each, in order. The
    # block sends items through an RPC: it returns their outcomes, or the Error of the request.
    def ack(connection, items)
      frames = connection.grants? ? whole_frames(items) : []
      return yield(Wire::ACK, items) if frames.empty?

      answer = yield(SETTLE, frames.map { |frame| frame_item(frame) })
      return answer if answer.is_a?(Error) && !answer.is_a?(UnimplementedError)

      found = {}.compare_by_identity
      if answer.is_a?(Error)
        connection.forget_grants
      else
        frames.zip(answer) { |frame, outcome| note(found, frame, outcome) }
      end
      ack_rest(items, found) { |rest| yield(Wire::ACK, rest) }
    end

    # What a frame's settlement means for its acks: nothing where they are to be sent one by one.
    def note(found, frame, outcome)
      return if outcome.is_a?(LeaseExpiredError)

      frame.each do |item|
        found[item] = outcome.is_a?(Error) ? outcome.about(item.queue, item.message_id) : nil
      end
    end

    def ack_rest(items, found)
      rest = items.reject { |item| found.key?(item) }
      if rest.any?
        answer = yield rest
        # Frames were settled before: what this request fails with is that of its own acks alone.
        if answer.is_a?(Error)
          answer = rest.map { |item| answer.about(item.queue, item.message_id) }
        end
        rest.zip(answer) { |item, outcome| found[item] = outcome }
      end
      items.map { |item| found[item] }
    end

    # The acks that make up whole frames, frame by frame.
    def whole_frames(items)
      together = items.select { |item| item.frame_size.to_i > 1 && !item.lease_token.empty? }
      together.group_by { |item| [item.queue, item.lease_token] }.values.select do |frame|
        frame.length == frame.first.frame_size && frame.uniq(&:message_id).length == frame.length
      end
    end

    # The settlement that stands for the acks of a frame, and may be repeated as they may: what it
    # finds no more is looked for by its acks.
    def frame_item(frame)
      first = frame.first
      item(first.queue, first.lease_token, [], expected: frame.length, ack: V1::GrantAck.new)
        .tap { |found| found.is_repeatable = true }
    end
  end
  private_constant :Grants

  # What a client does with grants.
  module GrantCalls
    # Acks what is left of a grant: all messages that were delivered under one lease token. Those in
    # `except_message_ids` are left alone. Returns how many were acked. Raises LeaseExpiredError
    # when none is left of it.
    def ack_grant(queue, lease_token, except_message_ids: [], timeout: nil)
      ack = V1::GrantAck.new
      settle_grant(Grants.item(queue, lease_token, except_message_ids, ack:), timeout).messages
    end

    # Nacks what is left of a grant, each message as `nack` would; returns how many. With
    # `retry_after_ms: 0` they are given back unseen. Fails as `ack_grant` does.
    def nack_grant(queue, lease_token, error = "", retry_after_ms: nil, throttle_key: nil,
                   dead_letter: false, except_message_ids: [], timeout: nil)
      fields = Wire.nack_fields(error, retry_after_ms:, throttle_key:, dead_letter:)
      nack = V1::GrantNack.new(**fields)
      settle_grant(Grants.item(queue, lease_token, except_message_ids, nack:), timeout).messages
    end

    # Prolongs what is left of a grant to `ms` from now, by default the queue's visibility timeout,
    # and returns its new end. Fails as `ack_grant` does.
    def extend_grant(queue, lease_token, ms = nil, except_message_ids: [], timeout: nil)
      extension = V1::GrantExtension.new(extend_ms: Arguments.whole("ms", ms))
      item = Grants.item(queue, lease_token, except_message_ids, extend: extension)
      settle_grant(item, timeout).lease_expires_at
    end

    private

    def settle_grant(item, timeout)
      outcome = Bulk.new(Grants::SETTLE, @connection).send_all([item], timeout).first
      raise outcome, cause: outcome.cause if outcome.is_a?(Error)

      outcome
    end
  end
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Settlements beside the handlers of a worker: a message's as a single call, which shares batches
# with others, a batch's as one call. Nobody waits for them here.

require "fila/bulk"
require "fila/message"
require "fila/wire"

module Fila
  # Acks and nacks what a worker's handlers are done with.
  class Settler
    def initialize(client, connection, acks, nacks)
      @client = client
      @connection = connection
      @acks = acks
      @nacks = nacks
    end

    # A delivered message, which can settle itself.
    def message(raw, frame_size)
      ConsumeMessage.new(raw, @client, frame_size)
    end

    # Acks the messages, or nacks them in the way that is given. The block gets the outcome of each,
    # nil or an Error, on a thread of the client; it must not wait for anything there.
    def settle(messages, nack, &answered)
      if messages.length == 1
        item = item(messages.first, nack)
        (nack ? @nacks : @acks).post(item) { |outcome| answered.call([outcome]) }
      else
        @connection.threads.run { answered.call(all(messages, nack)) }
      end
    rescue Error => e
      answered.call(failed(messages, e))
    end

    private

    def item(message, nack)
      queue = message.queue
      id = message.id
      lease_token = message.lease_token
      return Wire.ack_item(queue, id, lease_token, message.frame_size) unless nack

      Wire.nack_item(queue, id, nack[:error], lease_token, **nack.except(:error))
    end

    def all(messages, nack)
      return @client.ack_many(messages) unless nack

      items = messages.map { |message| item(message, nack) }
      Bulk.new(Wire::NACK, @connection).send_all(items, nil)
    rescue Error => e
      failed(messages, e)
    end

    def failed(messages, error)
      messages.map { |message| error.about(message.queue, message.id) }
    end
  end
  private_constant :Settler
end

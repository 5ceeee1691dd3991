# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# One message from a producer to a consumer.

require "fila"
require "securerandom"

Fila::Client.open(ENV.fetch("FILA_ADDR", "127.0.0.1:5555")) do |client|
  queue = "quickstart-#{SecureRandom.hex(4)}"
  client.create_queue(queue)

  message_id = client.enqueue(queue, "hello", headers: { "tenant" => "acme" })
  puts "enqueued #{message_id}"

  client.consume(queue) do |message|
    puts "received '#{message.payload}' of #{message.headers["tenant"]}"
    message.ack
    break
  end

  client.delete_queue(queue)
end

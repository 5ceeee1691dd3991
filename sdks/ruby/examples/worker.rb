# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A worker that runs handlers side by side: failures are retried, what is hopeless is dead-lettered.

require "fila"
require "securerandom"

MESSAGES = 20
HANDLERS = 5

# What a real worker does with a message; this one cannot stand the number 13.
def handle(message)
  sleep 0.02
  raise Fila::DeadLetter, "unlucky number" if message.payload == "13"
end

Fila::Client.open(ENV.fetch("FILA_ADDR", "127.0.0.1:5555")) do |client|
  queue = "worker-#{SecureRandom.hex(4)}"
  dead_letters = client.create_queue(queue)
  client.enqueue_many(
    Array.new(MESSAGES) { |n| Fila::EnqueueMessage.new(queue:, payload: n.to_s) }
  ).each(&:unwrap)

  left = MESSAGES
  worker = client.worker(
    queue, concurrency: HANDLERS, on_event: ->(_) { worker.stop if (left -= 1).zero? }
  ) { |message| handle(message) }
  # A real one runs until TERM or INT.
  worker.run

  letter = client.receive(dead_letters, wait_ms: 2_000).first
  puts "#{MESSAGES - 1} messages were processed"
  puts "message #{letter.payload} is a dead letter: #{letter.last_error}"
  letter.ack
  client.delete_queue(queue)
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A worker that runs handlers side by side: failures are retried, hopeless ones dead-lettered.

require "fila"
require "securerandom"

MESSAGES = 20
HANDLERS = 5

# What a real worker does with a message; this one cannot stand the number 13.
def handle(message)
  sleep 0.02
  raise ArgumentError, "unlucky number" if message.payload == "13"
end

def work(consumer, settled)
  consumer.each do |message|
    begin
      handle(message)
      message.ack
    rescue ArgumentError => e
      message.nack(e.message)
    end
    settled << message.id
  end
end

Fila::Client.open(ENV.fetch("FILA_ADDR", "127.0.0.1:5555")) do |client|
  queue = "worker-#{SecureRandom.hex(4)}"
  # The second failure of a message is its last.
  dead_letters = client.create_queue(queue, max_attempts: 2)
  client.enqueue_many(
    Array.new(MESSAGES) { |n| Fila::EnqueueMessage.new(queue:, payload: n.to_s) }
  ).each(&:unwrap)

  settled = Thread::Queue.new
  # No more in flight than there are handlers: what waits should wait at the broker, where other
  # workers can have it.
  consumer = client.consume(queue, max_in_flight: HANDLERS)
  handlers = Array.new(HANDLERS) { Thread.new { work(consumer, settled) } }
  (MESSAGES + 1).times { settled.pop } # one of them twice
  # Closing the consumer ends the iterations.
  consumer.close
  handlers.each(&:join)

  letter = client.receive(dead_letters, wait_ms: 2_000).first
  puts "#{MESSAGES - 1} messages were processed"
  puts "message #{letter.payload} is a dead letter: #{letter.last_error}"
  letter.ack
  client.delete_queue(queue)
end

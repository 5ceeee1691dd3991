# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Many messages at a time, both ways: what a load job or a pipeline does.

require "fila"
require "securerandom"

MESSAGES = 10_000

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

def with_commas(number)
  number.round.to_s.gsub(/(?<=\d)(?=(\d{3})+\z)/, ",")
end

def report(verb, count, start)
  puts "#{verb} #{with_commas(count)} messages at #{with_commas(count / (now - start))}/s"
end

Fila::Client.open(ENV.fetch("FILA_ADDR", "127.0.0.1:5555"), timeout: 30) do |client|
  queue = "batch-#{SecureRandom.hex(4)}"
  client.create_queue(queue)

  start = now
  # With a key for each message the client may send a request again when the broker was away.
  messages = (0...MESSAGES).lazy.map do |row|
    Fila::EnqueueMessage.new(queue:, payload: "x" * 256, headers: { "row" => row.to_s },
                             idempotency_key: "#{queue}-#{row}")
  end
  report("stored", client.enqueue_many(messages).count { |result| result.error.nil? }, start)

  start = now
  done = 0
  until (received = client.receive(queue, max_messages: 1_000)).empty?
    done += client.ack_many(received).count(nil)
  end
  report("drained", done, start)

  client.delete_queue(queue)
end

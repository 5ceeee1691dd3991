# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Uses the public API against a real broker, so that its signatures can be checked against what
# really goes in and comes out. Prints "done" when nothing was refused.

require "fila/testing"

CONFIG = "[auth]\nbootstrap_apikey = \"first-key\"\n"
Fila.logger.level = Logger::ERROR

Fila::Testing.broker(config: CONFIG) do |broker|
  events = Thread::Queue.new
  client = broker.client(
    api_key: -> { "first-key" }, timeout: 20, backoff: Fila::Backoff.new(initial: 0.1, maximum: 1),
    interceptors: [], on_connection: ->(event) { events << event.kind << event.reason }
  )
  client.wait_ready(timeout: 20)
  client.ping(timeout: 5)
  client.inspect

  # Queues.
  client.create_queue("orders", max_attempts: 3, on_hook_error: :reject)
  client.ensure_queue("orders", max_attempts: 3)
  client.update_queue("orders", retry_delay_ms: 1).on_hook_error
  client.list_queues.map { |row| [row.name, row.depth, row.paused, row.dead_letter_of] }

  # Messages.
  id = client.enqueue("orders", "bytes", headers: { "a" => "b" }, fairness_key: "acme",
                                         throttle_keys: ["mail"], idempotency_key: "k")
  client.enqueue(queue: "orders", text: "text", deliver_at: Time.now + 3600)
  client.enqueue_many([Fila::EnqueueMessage.new(queue: "orders", json: [1]),
                       Fila::EnqueueMessage.new(queue: "missing", payload: "x")]).each do |result|
    result.error ? result.error.retryable? : [result.duplicate?, result.unwrap]
  end
  client.flush
  page = client.peek("orders", state: :pending)
  page.messages.map { |row| [row.state, row.position, row.message.lease_expires_at] }
  client.explain("orders", message_id: id).reasons
  client.stats("orders", max_keys: 5).per_key_stats.map(&:round_position)

  # Deliveries.
  first, second = client.receive("orders", max_messages: 2, wait_ms: 5000)
  %i[id queue headers payload text fairness_key weight throttle_keys attempt_count lease_token
     last_error failures enqueued_at lease_expires_at settled? inspect].each do |name|
    first.public_send(name)
  end
  second.json
  first.extend_lease(30_000)
  client.extend_lease("orders", first.id)
  client.extend_many([first, second], 30_000)
  client.extend_grant("orders", first.lease_token)
  first.nack("later", retry_after_ms: 0)
  client.nack("orders", second.id, "no", lease_token: second.lease_token)
  consumer = client.consume("orders", max_in_flight: 4, visibility_timeout_ms: 30_000)
  message = consumer.pop(timeout: 20)
  message.ack
  consumer.batches(2) { |batch| break client.ack_many(batch) }
  consumer.closed?
  consumer.inspect
  consumer.close
  client.nack_many([message]).map { |error| error&.code }
  client.enqueue("orders", text: "work")
  worker = client.worker("orders", concurrency: 1, on_event: ->(event) { events << event.kind },
                                   handler_timeout: 20) do |_given|
    worker.stop
    raise Fila::DeadLetter, "no"
  end
  worker.run
  worker.inspect
  client.redrive("orders.dlq", count: 5)
  client.purge("orders")
  client.pause("orders", fairness_key: "acme")
  client.resume("orders", fairness_key: "acme")
  client.cancel("orders", client.enqueue("orders", delay_ms: 60_000))

  # Configuration and access.
  client.set_config("throttle:mail:rate", "5")
  entries = { "throttle:mail:burst" => "5" }
  client.set_config_all(entries)
  client.list_throttles("mail").throttles.map { |row| [row.tokens, row.paused_until, row.pattern] }
  client.pause_throttle("mail", duration_ms: 1000)
  client.resume_throttle("mail")
  client.get_config("throttle:mail:rate")
  client.list_config("throttle:")
  client.delete_config("throttle:mail:burst")
  acl = [Fila::AclEntry.new(permission: :produce, pattern: "orders")]
  made = client.create_api_key("worker", acl:, expires_at: Time.now + 3600)
  made.inspect
  client.set_acl(made.key_id, acl)
  client.get_acl(made.key_id).entries.map(&:permission)
  client.list_api_keys.map { |row| [row.expires_at, row.created_at, row.acl] }
  client.revoke_api_key(made.key_id)
  client.delete_queue("orders").messages
  client.close
end
puts "done"

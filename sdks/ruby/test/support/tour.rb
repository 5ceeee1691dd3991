# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Uses the public API against a real broker, so that its signatures can be checked against what
# really goes in and comes out. Prints "done" when nothing was refused.

require "fila/testing"

# RBS checks calls of methods by itself, but not the members of Structs, which are these values.
module Members
  LOADER = RBS::EnvironmentLoader.new.tap { |it| it.add(path: Pathname(__dir__).join("../../sig")) }
  BUILDER = RBS::DefinitionBuilder.new(
    env: RBS::Environment.from_loader(LOADER).resolve_type_names
  )

  # Raises when a member of a value, or of a value in it, is not what its signature says.
  def self.check(value)
    return value.each { |each| check(each) } if value.is_a?(Array)
    return unless value.is_a?(Struct)

    name = RBS::TypeName.new(name: value.class.name.split("::").last.to_sym,
                             namespace: RBS::Namespace.new(path: [:Fila], absolute: true))
    checker = RBS::Test::TypeCheck.new(self_class: value.class, builder: BUILDER,
                                       sample_size: 100, unchecked_classes: [])
    value.each_pair do |member, found|
      type = BUILDER.build_instance(name).methods.fetch(member).method_types.first.type.return_type
      raise "#{name}##{member} is #{found.inspect}" unless checker.value(found, type)

      check(found)
    end
  end
end

CONFIG = "[auth]\nbootstrap_apikey = \"first-key\"\n"
Fila.logger.level = Logger::ERROR

Fila::Testing.broker(config: CONFIG) do |broker|
  events = Thread::Queue.new
  client = broker.client(
    api_key: -> { "first-key" }, timeout: 20, backoff: Fila::Backoff.new(initial: 0.1, maximum: 1),
    interceptors: [], on_connection: ->(event) { events << event }
  )
  client.wait_ready(timeout: 20)
  client.ping(timeout: 5)
  client.inspect

  # Queues.
  client.create_queue("orders", max_attempts: 3, on_hook_error: :reject)
  client.ensure_queue("orders", max_attempts: 3)
  Members.check(client.update_queue("orders", retry_delay_ms: 1))
  Members.check(client.list_queues)

  # Messages.
  id = client.enqueue("orders", "bytes", headers: { "a" => "b" }, fairness_key: "acme",
                                         throttle_keys: ["mail"], idempotency_key: "k")
  client.enqueue(queue: "orders", text: "text", deliver_at: Time.now + 3600)
  client.enqueue_many([Fila::EnqueueMessage.new(queue: "orders", json: [1]),
                       Fila::EnqueueMessage.new(queue: "missing", payload: "x")]).each do |result|
    Members.check(result)
    result.duplicate?
    result.error ? result.error.retryable? : result.unwrap
  end
  client.flush
  Members.check(client.peek("orders", state: :pending))
  Members.check(client.explain("orders", message_id: id))
  Members.check(client.stats("orders", max_keys: 5))

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
  Members.check(client.explain("orders", fairness_key: "acme"))
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
  worker = client.worker("orders", concurrency: 1, on_event: ->(event) { events << event },
                                   handler_timeout: 20) do |_given|
    worker.stop
    raise Fila::DeadLetter, "no"
  end
  worker.run
  worker.inspect
  Members.check(client.peek("orders.dlq").messages.flat_map { |row| row.message.failures })
  client.redrive("orders.dlq", count: 5)
  client.purge("orders")
  client.pause("orders", fairness_key: "acme")
  client.resume("orders", fairness_key: "acme")
  client.cancel("orders", client.enqueue("orders", delay_ms: 60_000))

  # Configuration and access.
  client.set_config("throttle:mail:rate", "5")
  entries = { "throttle:mail:burst" => "5" }
  client.set_config_all(entries)
  Members.check(client.list_throttles("mail"))
  client.pause_throttle("mail", duration_ms: 1000)
  client.resume_throttle("mail")
  client.get_config("throttle:mail:rate")
  client.list_config("throttle:")
  client.delete_config("throttle:mail:burst")
  acl = [Fila::AclEntry.new(permission: :produce, pattern: "orders")]
  made = client.create_api_key("worker", acl:, expires_at: Time.now + 3600)
  made.inspect
  client.set_acl(made.key_id, acl)
  Members.check([made, client.get_acl(made.key_id), client.list_api_keys])
  client.revoke_api_key(made.key_id)
  Members.check(client.delete_queue("orders"))
  client.close
  Members.check(Array.new(events.size) { events.pop })
end
puts "done"

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# The requests of a driver that operate a broker: queues, configuration, API keys. The driver has
# the clients and reads the fields that all requests share.
module Operating
  SETTINGS = %i[
    visibility_timeout_ms max_attempts retry_delay_ms max_messages default_ttl_ms
    idempotency_window_ms
  ].freeze

  private

  def settings(request)
    (request["settings"] || {}).compact.transform_keys(&:to_sym)
  end

  def op_create_queue(request)
    { "dead_letter_queue" => client(request).create_queue(request["queue"], **settings(request)) }
  end

  def op_ensure_queue(request)
    { "dead_letter_queue" => client(request).ensure_queue(request["queue"], **settings(request)) }
  end

  def op_update_queue(request)
    found = client(request).update_queue(request["queue"], **settings(request))
    { "settings" => found.to_h.slice(*SETTINGS) }
  end

  def op_delete_queue(request)
    client(request).delete_queue(request["queue"], **options(request, :keep_dead_letters)).to_h
  end

  def op_list_queues(request)
    rows = client(request).list_queues.map do |row|
      row.to_h.slice(:name, :depth, :in_flight, :active_consumers)
    end
    { "queues" => rows }
  end

  def op_stats(request)
    client(request).stats(request["queue"]).to_h
                   .slice(:depth, :in_flight, :delayed, :active_consumers)
  end

  def op_peek(request)
    named = options(request, :limit, :from_position, :until_position, :fairness_key, :state,
                    :exclude_payload)
    page = client(request).peek(request["queue"], **named)
    messages = page.messages.map do |row|
      { id: row.message.id, payload: [row.message.payload].pack("m0"),
        fairness_key: row.message.fairness_key, state: row.state, position: row.position }
    end
    { messages:, next_position: page.next_position, end_position: page.end_position }
  end

  def op_purge(request)
    { "purged" => client(request).purge(request["queue"], **options(request, :fairness_key)) }
  end

  def op_pause(request)
    client(request).pause(request["queue"], **options(request, :fairness_key))
    {}
  end

  def op_resume(request)
    client(request).resume(request["queue"], **options(request, :fairness_key))
    {}
  end

  def op_cancel_message(request)
    client(request).cancel(request["queue"], request["message_id"])
    {}
  end

  def op_explain(request)
    named = options(request, :fairness_key, :message_id)
    found = client(request).explain(request["queue"], **named)
    { **found.to_h.slice(:summary, :fairness_key, :pending_count, :ahead, :state),
      reasons: found.reasons.map(&:kind) }
  end

  def op_redrive(request)
    { "redriven" => client(request).redrive(request["queue"], **options(request, :count)) }
  end

  def op_set_config(request)
    client(request).set_config(request["key"], request["value"])
    {}
  end

  def op_get_config(request)
    { "value" => client(request).get_config(request["key"]) }
  end

  def op_set_config_all(request)
    client(request).set_config_all(request["entries"])
    {}
  end

  def op_delete_config(request)
    client(request).delete_config(request["key"])
    {}
  end

  def op_list_config(request)
    { "entries" => client(request).list_config(*[request["prefix"]].compact) }
  end

  def op_list_throttles(request)
    page = client(request).list_throttles(*[request["prefix"]].compact,
                                          **options(request, :unset, :limit))
    rows = page.throttles.map do |row|
      row.to_h.slice(:key, :rate_per_second, :burst, :concurrency_limit, :in_flight, :waiting,
                     :pattern, :unset, :paused)
    end
    { "throttles" => rows, "total_count" => page.total_count }
  end

  def op_pause_throttle(request)
    client(request).pause_throttle(request["key"], **options(request, :duration_ms))
    {}
  end

  def op_resume_throttle(request)
    client(request).resume_throttle(request["key"])
    {}
  end

  def acl(request)
    (request["acl"] || []).map do |entry|
      Fila::AclEntry.new(permission: entry["permission"], pattern: entry["pattern"])
    end
  end

  def op_create_api_key(request)
    named = options(request, :superadmin)
    expires_at = request["expires_at_ms"]
    named[:expires_at] = Time.at(0, expires_at, :millisecond, in: "UTC") if expires_at
    client(request).create_api_key(request["name"], acl: acl(request), **named).to_h
  end

  def op_revoke_api_key(request)
    client(request).revoke_api_key(request["key_id"])
    {}
  end

  def op_list_api_keys(request)
    keys = client(request).list_api_keys.map do |key|
      { **key.to_h.slice(:key_id, :name, :superadmin),
        expires_at_ms: milliseconds(key.expires_at), acl: key.acl.map(&:to_h) }
    end
    { "keys" => keys }
  end

  def op_set_acl(request)
    client(request).set_acl(request["key_id"], acl(request))
    {}
  end

  def op_get_acl(request)
    found = client(request).get_acl(request["key_id"])
    { "acl" => found.entries.map(&:to_h), "superadmin" => found.superadmin }
  end
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Operating a broker: the part of the client that calls FilaAdmin for queues and configuration. API
# keys are in access.rb. Fields have the names of the contract, where each is described.

require "fila/arguments"
require "fila/connection"
require "fila/threads"
require "fila/values"

module Fila
  # The calls of FilaAdmin that are about queues and runtime configuration.
  module Admin
    SERVICE = "/fila.v1.FilaAdmin/"
    SETTINGS = QueueConfig.members.freeze
    # The broker makes the names of dead-letter queues so.
    DEAD_LETTER_SUFFIX = ".dlq"
    # A hook's source is long; its beginning tells it from another.
    SHOWN_LENGTH = 60
    TEXT_SETTINGS = %i[on_enqueue_script on_failure_script].freeze
    private_constant :SERVICE, :SETTINGS, :DEAD_LETTER_SUFFIX, :SHOWN_LENGTH, :TEXT_SETTINGS

    # Creates a queue and its dead-letter queue, and returns the latter's name. The settings are the
    # fields of QueueConfig.
    def create_queue(name, timeout: nil, **settings)
      name = Arguments.required_text("name", name)
      request = V1::CreateQueueRequest.new(name:, config: queue_config(settings))
      admin("CreateQueue", request, timeout, queue: name).dead_letter_queue
    end

    # Creates a queue unless it is there, and is content if it is there with these settings; returns
    # what `create_queue` returns. Settings that are not given are not compared. Where others are in
    # force it raises QueueAlreadyExistsError and changes nothing: somebody else may have set them.
    def ensure_queue(name, timeout: nil, **settings)
      deadline = Clock.now + @connection.seconds(timeout)
      begin
        create_or_check(name, settings, deadline)
      rescue QueueNotFoundError
        # It was deleted between the two calls.
        create_or_check(name, settings, deadline)
      end
    end

    # Changes the settings that are named, and returns all of them as a QueueConfig.
    def update_queue(queue, timeout: nil, **settings)
      queue = Arguments.required_text("queue", queue)
      update_mask = Google::Protobuf::FieldMask.new(paths: settings.keys.map(&:name))
      request = V1::UpdateQueueRequest.new(queue:, config: queue_config(settings), update_mask:)
      Values.config(admin("UpdateQueue", request, timeout, queue:).config)
    end

    # Removes a queue with everything in it and its dead letters, and returns how many went, as a
    # DeletedQueue.
    def delete_queue(queue, keep_dead_letters: false, timeout: nil)
      request = V1::DeleteQueueRequest.new(
        queue: Arguments.required_text("queue", queue),
        keep_dead_letters: keep_dead_letters ? true : false
      )
      Values.plain(DeletedQueue, admin("DeleteQueue", request, timeout, queue:))
    end

    # All queues by name, as QueueInfo.
    def list_queues(timeout: nil)
      answer = admin("ListQueues", V1::ListQueuesRequest.new, timeout, is_repeatable: true)
      answer.queues.map { |row| Values.plain(QueueInfo, row) }
    end

    # Counts, scheduling state and settings of a queue, with its `max_keys` busiest keys.
    def stats(queue, max_keys: nil, timeout: nil)
      queue = Arguments.required_text("queue", queue)
      max_keys = Arguments.small("max_keys", max_keys)
      request = V1::GetStatsRequest.new(queue:, max_keys:)
      Values.stats(admin("GetStats", request, timeout, queue:, is_repeatable: true))
    end

    # Shows messages without leasing them, oldest first, as a PeekPage; `state` is `:pending`,
    # `:delayed` or `:leased`.
    def peek(queue, limit: 10, from_position: 0, until_position: 0, fairness_key: nil, state: nil,
             exclude_payload: false, timeout: nil)
      state &&= Values.constant(Values::MESSAGE_STATE, "state", state)
      request = V1::PeekRequest.new(
        queue: Arguments.required_text("queue", queue),
        limit: Arguments.small("limit", limit),
        from_position: Arguments.whole("from_position", from_position),
        until_position: Arguments.whole("until_position", until_position),
        fairness_key: Arguments.text("fairness_key", fairness_key),
        state:,
        exclude_payload: exclude_payload ? true : false
      )
      Values.page(admin("Peek", request, timeout, queue:, is_repeatable: true))
    end

    # Drops pending and delayed messages, and returns how many.
    def purge(queue, fairness_key: nil, timeout: nil)
      request = V1::PurgeRequest.new(**queue_and_key(queue, fairness_key))
      admin("Purge", request, timeout, queue:).purged
    end

    # Stops deliveries from a queue, or from one fairness key of it; enqueueing goes on.
    def pause(queue, fairness_key: nil, timeout: nil)
      admin("Pause", V1::PauseRequest.new(**queue_and_key(queue, fairness_key)), timeout, queue:)
      nil
    end

    # Starts deliveries again.
    def resume(queue, fairness_key: nil, timeout: nil)
      admin("Resume", V1::ResumeRequest.new(**queue_and_key(queue, fairness_key)), timeout, queue:)
      nil
    end

    # Moves dead letters back to where they came from, oldest first, and returns how many.
    def redrive(dlq, count: nil, fairness_key: nil, error_contains: nil, message_ids: [],
                timeout: nil)
      request = V1::RedriveRequest.new(
        dlq_queue: Arguments.required_text("dlq", dlq),
        count: Arguments.whole("count", count),
        fairness_key: Arguments.text("fairness_key", fairness_key),
        error_contains: Arguments.text("error_contains", error_contains),
        message_ids: Arguments.texts("message_ids", message_ids)
      )
      admin("Redrive", request, timeout, queue: dlq).redriven
    end

    # Drops one message; a leased one raises MessageLeasedError.
    def cancel(queue, message_id, timeout: nil)
      request = V1::CancelMessageRequest.new(
        queue: Arguments.required_text("queue", queue),
        message_id: Arguments.required_text("message_id", message_id)
      )
      admin("CancelMessage", request, timeout, queue:, message_id:)
      nil
    end

    # Says why a message or a fairness key waits, and for how long, as an Explanation.
    def explain(queue, fairness_key: nil, message_id: nil, timeout: nil)
      request = V1::ExplainRequest.new(
        **queue_and_key(queue, fairness_key),
        message_id: Arguments.text("message_id", message_id)
      )
      answer = admin("Explain", request, timeout, queue:, message_id:, is_repeatable: true)
      Values.explanation(answer)
    end

    # Throttle keys that are configured or in use, as a ThrottlePage; `unset` shows only those in
    # use that nobody configured.
    def list_throttles(prefix = "", unset: false, limit: nil, timeout: nil)
      request = V1::ListThrottlesRequest.new(
        prefix: Arguments.text("prefix", prefix),
        unset: unset ? true : false,
        limit: Arguments.small("limit", limit)
      )
      Values.throttle_page(admin("ListThrottles", request, timeout, is_repeatable: true))
    end

    # Stops deliveries with a throttle key in all queues, for a time or until it is resumed.
    def pause_throttle(key, duration_ms: nil, timeout: nil)
      request = V1::PauseRequest.new(
        throttle_key: Arguments.required_text("key", key),
        duration_ms: Arguments.whole("duration_ms", duration_ms)
      )
      admin("Pause", request, timeout)
      nil
    end

    # Starts deliveries with a throttle key again, whoever stopped them.
    def resume_throttle(key, timeout: nil)
      request = V1::ResumeRequest.new(throttle_key: Arguments.required_text("key", key))
      admin("Resume", request, timeout)
      nil
    end

    # Sets one entry, in force at once; limits such as `throttle:<key>:rate` are entries. An empty
    # value removes the entry.
    def set_config(key, value, timeout: nil)
      request = V1::SetConfigRequest.new(
        key: Arguments.required_text("key", key), value: Arguments.required_text("value", value)
      )
      admin("SetConfig", request, timeout, is_repeatable: true)
      nil
    end

    # Sets the entries of a Hash together, all or none; an empty value removes its entry.
    def set_config_all(entries, timeout: nil)
      pairs = entries.map do |key, value|
        V1::ConfigEntry.new(key: Arguments.required_text("key", key),
                            value: Arguments.required_text("value", value))
      end
      admin("SetConfig", V1::SetConfigRequest.new(entries: pairs), timeout, is_repeatable: true)
      nil
    end

    # Reads one entry, or raises ConfigNotFoundError.
    def get_config(key, timeout: nil)
      request = V1::GetConfigRequest.new(key: Arguments.required_text("key", key))
      admin("GetConfig", request, timeout, is_repeatable: true).value
    end

    # Removes one entry, and the limit that it set, or raises ConfigNotFoundError. Never sent twice:
    # the second time would report an entry that the first one removed as missing.
    def delete_config(key, timeout: nil)
      request = V1::DeleteConfigRequest.new(key: Arguments.required_text("key", key))
      admin("DeleteConfig", request, timeout)
      nil
    end

    # The entries whose keys start with `prefix`, as a Hash.
    def list_config(prefix = "", timeout: nil)
      request = V1::ListConfigRequest.new(prefix: Arguments.text("prefix", prefix))
      answer = admin("ListConfig", request, timeout, is_repeatable: true)
      answer.entries.to_h { |entry| [entry.key, entry.value] }
    end

    private

    # Sends one request of FilaAdmin. Those that change nothing, or the same when they are done
    # twice, are sent again while the broker is away.
    def admin(method, request, timeout, queue: nil, message_id: nil, is_repeatable: false)
      @connection.check_open
      response = V1.const_get("#{method}Response")
      data = request.class.encode(request)
      @connection.retrying(is_repeatable, timeout) do |remaining|
        @connection.call("#{SERVICE}#{method}", data, response, remaining, queue:, message_id:)
      end
    end

    def queue_and_key(queue, fairness_key)
      { queue: Arguments.required_text("queue", queue),
        fairness_key: Arguments.text("fairness_key", fairness_key) }
    end

    def create_or_check(name, settings, deadline)
      create_queue(name, timeout: deadline - Clock.now, **settings)
    rescue QueueAlreadyExistsError
      found = stats(name, max_keys: 1, timeout: deadline - Clock.now).config
      check_settings(name, settings.keys, found, Values.config(queue_config(settings)))
      "#{name}#{DEAD_LETTER_SUFFIX}"
    end

    def check_settings(queue, names, found, wanted)
      others = names.reject { |name| wanted[name] == found[name] }.map do |name|
        "#{name} is #{shown(found[name])}, not #{shown(wanted[name])}"
      end
      return if others.empty?

      text = "queue #{queue.inspect} exists with other settings: #{others.join("; ")}; " \
             "update_queue changes them"
      raise QueueAlreadyExistsError.new(text, code: "ALREADY_EXISTS",
                                              reason: "QUEUE_ALREADY_EXISTS", queue:)
    end

    def shown(value)
      text = value.inspect
      text.length > SHOWN_LENGTH ? "#{text[0, SHOWN_LENGTH]}..." : text
    end

    def queue_config(settings)
      V1::QueueConfig.new(**settings.to_h { |name, value| [name, setting(name, value)] })
    end

    def setting(name, value)
      unless SETTINGS.include?(name)
        raise ArgumentError,
              "\"#{name}\" is not a setting of a queue; they are #{SETTINGS.sort.join(", ")}"
      end
      if value.nil?
        raise ArgumentError, "setting #{name} must not be nil; 0 or an empty text mean the default"
      end
      return Arguments.text(name, value) if TEXT_SETTINGS.include?(name)
      return Arguments.whole(name, value) unless name == :on_hook_error

      Values.constant(Values::HOOK_ERROR_POLICY, name, value)
    end
  end
  private_constant :Admin
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What FilaAdmin answers, as plain frozen values; and how they are read. No I/O.
#
# Fields have the names of the contract, where each is described. Enums are symbols without their
# prefix (`:pending`); nil stands for "unspecified" and for what a newer broker may send.

require "fila/message"
require "fila/proto"

module Fila
  # All settings of a queue; 0 and "" mean the default.
  QueueConfig = Struct.new(
    :on_enqueue_script, :on_failure_script, :visibility_timeout_ms, :max_attempts, :retry_delay_ms,
    :retry_delay_max_ms, :default_ttl_ms, :idempotency_window_ms, :max_messages, :on_hook_error,
    :hook_timeout_ms, :hook_memory_limit_bytes, :quantum,
    keyword_init: true
  )

  # One row of the list of queues.
  QueueInfo = Struct.new(
    :name, :depth, :in_flight, :active_consumers, :leader_node_id, :paused, :dead_letter_of,
    :delayed,
    keyword_init: true
  )

  # How much went with a queue.
  DeletedQueue = Struct.new(:messages, :dead_letters, keyword_init: true)

  # One fairness key of a queue; its `round_position` is nil when it takes no part in the round.
  FairnessKeyStats = Struct.new(
    :key, :pending_count, :current_deficit, :weight, :delivered, :throttled, :paused,
    :round_position,
    keyword_init: true
  )

  # One throttle key: its token bucket and its concurrency limit.
  ThrottleKeyStats = Struct.new(
    :key, :tokens, :rate_per_second, :burst, :passed, :blocked, :concurrency_limit, :in_flight,
    :paused_until, :waiting, :passed_per_second, :blocked_per_second, :pattern, :unset, :paused,
    keyword_init: true
  )

  # Some throttle keys, by key. `total_count` includes those beyond the limit.
  ThrottlePage = Struct.new(:throttles, :total_count, keyword_init: true)

  # What happened in a queue since the broker started.
  QueueCounters = Struct.new(
    :enqueued, :delivered, :acked, :nacked, :expired, :dead_lettered, :timed_out, :duplicates,
    keyword_init: true
  )

  # How a queue's hooks are doing.
  HookStats = Struct.new(
    :calls, :failures, :bypassed, :circuit_open, :last_error,
    keyword_init: true
  )

  # Counts, scheduling state and settings of one queue.
  QueueStats = Struct.new(
    :depth, :in_flight, :active_fairness_keys, :active_consumers, :quantum, :per_key_stats,
    :per_throttle_stats, :leader_node_id, :replication_count, :counters, :config,
    :oldest_pending_age_ms, :dead_letter_of, :consumer_credit, :throttled, :hooks, :delayed,
    :paused, :round_key,
    keyword_init: true
  )

  # One message as it lies in its queue.
  PeekedMessage = Struct.new(:message, :state, :position, keyword_init: true)

  # Some messages, oldest first. `next_position` is 0 when nothing follows.
  PeekPage = Struct.new(:messages, :next_position, :end_position, keyword_init: true)

  # One reason to wait.
  WaitReason = Struct.new(
    :kind, :detail, :throttle_key, :until, :count, :limit,
    keyword_init: true
  )

  # Why a message or a fairness key waits; the reason that decides comes first.
  Explanation = Struct.new(
    :summary, :reasons, :estimated_at, :fairness_key, :pending_count, :ahead, :state, :failures,
    :unset_throttle_keys,
    keyword_init: true
  )

  # One permission (`:produce`, `:consume` or `:admin`) on `orders` (one queue), `orders.*` (a
  # prefix) or `*` (all).
  AclEntry = Struct.new(:permission, :pattern, keyword_init: true)

  # What an API key may do; a superadmin may do everything.
  Acl = Struct.new(:entries, :superadmin, keyword_init: true)

  # One API key, without its secret.
  ApiKeyInfo = Struct.new(
    :key_id, :name, :created_at, :expires_at, :superadmin, :acl,
    keyword_init: true
  )

  # A key that was just created. The secret is shown this once, and never by `inspect`.
  NewApiKey = Struct.new(:key_id, :secret, keyword_init: true) do
    def inspect
      "#<#{self.class} key_id=#{key_id.inspect}>"
    end
    alias_method :to_s, :inspect
  end

  # Reads answers.
  module Values
    # Each enum with its prefix. Ruby's protobuf names values by symbols.
    HOOK_ERROR_POLICY = [V1::HookErrorPolicy, "HOOK_ERROR_POLICY_"].freeze
    MESSAGE_STATE = [V1::MessageState, "MESSAGE_STATE_"].freeze
    WAIT_KIND = [V1::WaitKind, "WAIT_KIND_"].freeze
    FAILURE_CAUSE = [V1::FailureCause, "FAILURE_CAUSE_"].freeze

    module_function

    # A value from the message whose fields have the same names; `others` are given already.
    def plain(kind, raw, **others)
      fields = kind.members.to_h do |name|
        [name, others.fetch(name) { field(raw.public_send(name)) }]
      end
      kind.new(**fields).freeze
    end

    def field(value)
      value.is_a?(Google::Protobuf::Timestamp) ? Moment.of(value) : value
    end

    # A member of an enum: `:MESSAGE_STATE_PENDING` is `:pending`.
    def member(enum, value)
      _, prefix = enum
      name = value.is_a?(Symbol) ? value.name.delete_prefix(prefix) : "UNSPECIFIED"
      name == "UNSPECIFIED" ? nil : name.downcase.to_sym
    end

    # The contract's name for a member. Raises ArgumentError that lists the members.
    def constant(enum, name, value)
      kind, prefix = enum
      found = :"#{prefix}#{value.to_s.upcase}"
      return found if kind.resolve(found)&.positive?

      in_order = kind.constants.sort_by { |known| kind.resolve(known) }
      members = in_order.filter_map { |known| member(enum, known) }
      raise ArgumentError, "#{name} must be one of #{members.join(", ")}, not #{value.inspect}"
    end

    def config(raw)
      policy = member(HOOK_ERROR_POLICY, raw.on_hook_error) || :default
      plain(QueueConfig, raw, on_hook_error: policy)
    end

    def stats(raw)
      plain(
        QueueStats, raw,
        per_key_stats: raw.per_key_stats.map { |key| fairness_key(key) }.freeze,
        per_throttle_stats: throttle_keys(raw.per_throttle_stats),
        counters: plain(QueueCounters, raw.counters || V1::QueueCounters.new),
        config: config(raw.config || V1::QueueConfig.new),
        hooks: raw.hooks && plain(HookStats, raw.hooks)
      )
    end

    def fairness_key(raw)
      round_position = raw.has_round_position? ? raw.round_position : nil
      plain(FairnessKeyStats, raw, round_position:)
    end

    def throttle_keys(rows)
      rows.map { |row| plain(ThrottleKeyStats, row) }.freeze
    end

    def throttle_page(raw)
      plain(ThrottlePage, raw, throttles: throttle_keys(raw.throttles))
    end

    def failures(rows)
      rows.map { |row| plain(Failure, row, cause: member(FAILURE_CAUSE, row.cause)) }.freeze
    end

    def page(raw)
      messages = raw.messages.map do |row|
        plain(PeekedMessage, row, message: Message.new(row.message),
                                  state: member(MESSAGE_STATE, row.state))
      end
      plain(PeekPage, raw, messages: messages.freeze)
    end

    def explanation(raw)
      reasons = raw.reasons.map do |reason|
        plain(WaitReason, reason, kind: member(WAIT_KIND, reason.kind))
      end
      plain(
        Explanation, raw,
        reasons: reasons.freeze,
        state: member(MESSAGE_STATE, raw.state),
        failures: failures(raw.failures),
        unset_throttle_keys: raw.unset_throttle_keys.to_a.freeze
      )
    end

    def acl(permissions)
      permissions.map { |it| plain(AclEntry, it, permission: it.kind.to_sym) }.freeze
    end

    def api_key(raw)
      plain(ApiKeyInfo, raw, acl: acl(raw.acl))
    end
  end
  private_constant :Values
end

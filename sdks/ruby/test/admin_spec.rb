# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Operating calls send what they are told and read every field of the answer.
RSpec.describe "Operating a broker" do
  def answer(method, response)
    broker.script(method) { response }
  end

  def request(method)
    broker.calls(method).first.request
  end

  def at(seconds)
    Google::Protobuf::Timestamp.new(seconds:)
  end

  it "creates a queue with settings" do
    answer("CreateQueue", Fila::V1::CreateQueueResponse.new(dead_letter_queue: "orders.dlq"))
    settings = { on_enqueue_script: "a", on_failure_script: "b", visibility_timeout_ms: 1,
                 max_attempts: 2, retry_delay_ms: 3, retry_delay_max_ms: 4, default_ttl_ms: 5,
                 idempotency_window_ms: 6, max_messages: 7, hook_timeout_ms: 8,
                 hook_memory_limit_bytes: 9, quantum: 10 }
    expect(client.create_queue("orders", **settings, on_hook_error: :reject)).to eq "orders.dlq"
    expect(request("CreateQueue")).to eq Fila::V1::CreateQueueRequest.new(
      name: "orders",
      config: Fila::V1::QueueConfig.new(**settings, on_hook_error: :HOOK_ERROR_POLICY_REJECT)
    )
  end

  it "changes only the settings that are named" do
    config = Fila::V1::QueueConfig.new(max_attempts: 3, quantum: 5)
    answer("UpdateQueue", Fila::V1::UpdateQueueResponse.new(config:))
    found = client.update_queue("orders", max_attempts: 3, retry_delay_ms: 0)
    expect(request("UpdateQueue").update_mask.paths.to_a).to eq %w[max_attempts retry_delay_ms]
    expect([found.max_attempts, found.quantum, found.on_hook_error]).to eq [3, 5, :default]
    expect(found).to be_frozen
  end

  it "names a setting that does not exist or makes no sense" do
    {
      { colour: 1 } => '"colour" is not a setting of a queue; they are default_ttl_ms, hook_',
      { max_attempts: nil } => "setting max_attempts must not be nil",
      { max_attempts: -1 } => "max_attempts must not be negative",
      { on_hook_error: :panic } => "on_hook_error must be one of default, reject, not :panic"
    }.each do |settings, text|
      expect { client.create_queue("orders", **settings) }
        .to raise_error(ArgumentError, /\A#{Regexp.escape(text)}/)
    end
    expect(broker.seen).to eq []
  end

  it "deletes, pauses, resumes and cancels" do
    answer("DeleteQueue", Fila::V1::DeleteQueueResponse.new(messages: 3, dead_letters: 2))
    gone = Fila::DeletedQueue.new(messages: 3, dead_letters: 2)
    expect(client.delete_queue("orders")).to eq gone
    expect(client.delete_queue("orders", keep_dead_letters: true)).to eq gone
    expect(client.pause("orders")).to be_nil
    expect(client.resume("orders", fairness_key: "acme")).to be_nil
    expect(client.cancel("orders", "m-1")).to be_nil
    expect(broker.seen.map(&:request)).to eq [
      Fila::V1::DeleteQueueRequest.new(queue: "orders"),
      Fila::V1::DeleteQueueRequest.new(queue: "orders", keep_dead_letters: true),
      Fila::V1::PauseRequest.new(queue: "orders"),
      Fila::V1::ResumeRequest.new(queue: "orders", fairness_key: "acme"),
      Fila::V1::CancelMessageRequest.new(queue: "orders", message_id: "m-1")
    ]
  end

  let(:throttle) do
    { key: "mail", tokens: 0.5, rate_per_second: 2.0, burst: 3.0, passed: 4, blocked: 5,
      concurrency_limit: 6, in_flight: 7, waiting: 8, passed_per_second: 9.5,
      blocked_per_second: 10.5, pattern: "mai*", unset: true, paused: true }
  end
  let(:raw_failures) do
    [Fila::V1::Failure.new(failed_at: at(5), cause: :FAILURE_CAUSE_EXPIRED, error: "late"),
     Fila::V1::Failure.new(cause: 99)]
  end
  let(:failures) do
    [Fila::Failure.new(failed_at: Time.at(5), cause: :expired, error: "late"),
     Fila::Failure.new(failed_at: nil, cause: nil, error: "")]
  end

  it "lists throttle keys" do
    row = Fila::V1::PerThrottleKeyStats.new(**throttle)
    answer("ListThrottles", Fila::V1::ListThrottlesResponse.new(throttles: [row], total_count: 7))
    page = client.list_throttles("mail", unset: true, limit: 1)
    expect(page.throttles).to eq [Fila::ThrottleKeyStats.new(**throttle)]
    expect(page.total_count).to eq 7
    client.list_throttles
    expect(broker.seen.map(&:request)).to eq [
      Fila::V1::ListThrottlesRequest.new(prefix: "mail", unset: true, limit: 1),
      Fila::V1::ListThrottlesRequest.new
    ]
  end

  it "pauses and resumes throttle keys" do
    expect(client.pause_throttle("stripe")).to be_nil
    expect(client.pause_throttle("stripe", duration_ms: 60_000)).to be_nil
    expect(client.resume_throttle("stripe")).to be_nil
    expect(broker.seen.map(&:request)).to eq [
      Fila::V1::PauseRequest.new(throttle_key: "stripe"),
      Fila::V1::PauseRequest.new(throttle_key: "stripe", duration_ms: 60_000),
      Fila::V1::ResumeRequest.new(throttle_key: "stripe")
    ]
  end

  it "lists queues" do
    row = { name: "orders", depth: 1, in_flight: 2, active_consumers: 3, leader_node_id: 4,
            paused: true, dead_letter_of: "", delayed: 5 }
    queues = [Fila::V1::QueueInfo.new(**row)]
    answer("ListQueues", Fila::V1::ListQueuesResponse.new(queues:))
    expect(client.list_queues).to eq [Fila::QueueInfo.new(**row)]
  end

  it "reads all of a queue's stats" do
    key = { key: "acme", pending_count: 1, current_deficit: -2, weight: 3, delivered: 4,
            throttled: 5, paused: true }
    counters = { enqueued: 1, delivered: 2, acked: 3, nacked: 4, expired: 5, dead_lettered: 6,
                 timed_out: 7, duplicates: 8 }
    hooks = { calls: 1, failures: 2, bypassed: 3, circuit_open: true, last_error: "oops" }
    plain = { depth: 1, in_flight: 2, active_fairness_keys: 3, active_consumers: 4, quantum: 5,
              delayed: 6, paused: false, oldest_pending_age_ms: 7, dead_letter_of: "",
              consumer_credit: 8, throttled: 9, leader_node_id: 10, replication_count: 11,
              round_key: "zeta" }
    response = Fila::V1::GetStatsResponse.new(
      **plain,
      per_key_stats: [Fila::V1::PerFairnessKeyStats.new(**key),
                      Fila::V1::PerFairnessKeyStats.new(key: "zeta", round_position: 0)],
      per_throttle_stats: [Fila::V1::PerThrottleKeyStats.new(**throttle, paused_until: at(9))],
      counters: Fila::V1::QueueCounters.new(**counters),
      config: Fila::V1::QueueConfig.new(max_attempts: 3),
      hooks: Fila::V1::HookStats.new(**hooks)
    )
    answer("GetStats", response)
    stats = client.stats("orders", max_keys: 5)
    expect(request("GetStats")).to eq Fila::V1::GetStatsRequest.new(queue: "orders", max_keys: 5)
    expect(stats.to_h).to include(plain)
    expect(stats.per_key_stats.first).to eq Fila::FairnessKeyStats.new(**key)
    expect(stats.per_key_stats.map(&:round_position)).to eq [nil, 0]
    expect(stats.per_throttle_stats)
      .to eq [Fila::ThrottleKeyStats.new(**throttle, paused_until: Time.at(9))]
    expect(stats.counters).to eq Fila::QueueCounters.new(**counters)
    expect(stats.config.max_attempts).to eq 3
    expect(stats.hooks).to eq Fila::HookStats.new(**hooks)
  end

  it "reads stats that say little" do
    stats = client.stats("orders")
    expect([stats.depth, stats.hooks, stats.per_key_stats]).to eq [0, nil, []]
    expect(stats.counters.enqueued).to eq 0
  end

  it "peeks" do
    rows = [[:MESSAGE_STATE_DELAYED, 4], [:MESSAGE_STATE_UNSPECIFIED, 5], [99, 6]]
    messages = rows.map do |state, position|
      Fila::V1::PeekedMessage.new(message: raw_message("m-#{position}"), state:, position:)
    end
    messages.first.message.metadata.failures.replace(raw_failures)
    answer("Peek", Fila::V1::PeekResponse.new(messages:, next_position: 7, end_position: 9))
    page = client.peek("orders", limit: 3, from_position: 1, until_position: 8, state: :delayed,
                                 fairness_key: "acme", exclude_payload: true)
    expect(request("Peek")).to eq Fila::V1::PeekRequest.new(
      queue: "orders", limit: 3, from_position: 1, until_position: 8, fairness_key: "acme",
      state: :MESSAGE_STATE_DELAYED, exclude_payload: true
    )
    expect(page.messages.map { |row| [row.message.id, row.state, row.position] })
      .to eq [["m-4", :delayed, 4], ["m-5", nil, 5], ["m-6", nil, 6]]
    expect(page.messages.map { |row| row.message.failures }).to eq [failures, [], []]
    expect([page.next_position, page.end_position]).to eq [7, 9]
    expect { client.peek("orders", state: :lost) }
      .to raise_error(ArgumentError, "state must be one of pending, delayed, leased, not :lost")
  end

  it "purges and redrives" do
    answer("Purge", Fila::V1::PurgeResponse.new(purged: 3))
    answer("Redrive", Fila::V1::RedriveResponse.new(redriven: 4))
    expect(client.purge("orders", fairness_key: "acme")).to eq 3
    expect(client.redrive("orders.dlq", count: 5, fairness_key: "acme", error_contains: "boom",
                                        message_ids: %w[a b])).to eq 4
    expect(broker.seen.map(&:request)).to eq [
      Fila::V1::PurgeRequest.new(queue: "orders", fairness_key: "acme"),
      Fila::V1::RedriveRequest.new(dlq_queue: "orders.dlq", count: 5, fairness_key: "acme",
                                   error_contains: "boom", message_ids: %w[a b])
    ]
  end

  it "explains" do
    reason = { detail: "bucket is empty", throttle_key: "mail", count: 1, limit: 2 }
    response = Fila::V1::ExplainResponse.new(
      summary: "it waits", fairness_key: "acme", pending_count: 3, ahead: 4,
      estimated_at: at(5), state: :MESSAGE_STATE_PENDING,
      failures: raw_failures, unset_throttle_keys: %w[mail sms],
      reasons: [Fila::V1::WaitReason.new(**reason, kind: :WAIT_KIND_THROTTLED, until: at(6))]
    )
    answer("Explain", response)
    found = client.explain("orders", message_id: "m-1")
    expect(request("Explain"))
      .to eq Fila::V1::ExplainRequest.new(queue: "orders", message_id: "m-1")
    expect(found).to eq Fila::Explanation.new(
      summary: "it waits", fairness_key: "acme", pending_count: 3, ahead: 4,
      estimated_at: Time.at(5), state: :pending, failures:, unset_throttle_keys: %w[mail sms],
      reasons: [Fila::WaitReason.new(**reason, kind: :throttled, until: Time.at(6))]
    )
  end

  it "sets, reads, lists and removes configuration" do
    answer("GetConfig", Fila::V1::GetConfigResponse.new(value: "5,10"))
    entries = [Fila::V1::ConfigEntry.new(key: "throttle.mail", value: "5,10")]
    answer("ListConfig", Fila::V1::ListConfigResponse.new(entries:))
    expect(client.set_config("throttle.mail", "5,10")).to be_nil
    expect(client.set_config_all({ "throttle:mail:rate" => "5", "throttle:mail:burst" => "" }))
      .to be_nil
    expect(client.get_config("throttle.mail")).to eq "5,10"
    expect(client.list_config("throttle")).to eq("throttle.mail" => "5,10")
    expect(client.delete_config("throttle.mail")).to be_nil
    expect(broker.seen.map(&:request)).to eq [
      Fila::V1::SetConfigRequest.new(key: "throttle.mail", value: "5,10"),
      Fila::V1::SetConfigRequest.new(
        entries: [Fila::V1::ConfigEntry.new(key: "throttle:mail:rate", value: "5"),
                  Fila::V1::ConfigEntry.new(key: "throttle:mail:burst")]
      ),
      Fila::V1::GetConfigRequest.new(key: "throttle.mail"),
      Fila::V1::ListConfigRequest.new(prefix: "throttle"),
      Fila::V1::DeleteConfigRequest.new(key: "throttle.mail")
    ]
    expect { client.set_config("key", nil) }
      .to raise_error(TypeError, "value must be a String, not nil")
  end

  describe "API keys" do
    let(:entry) { Fila::AclEntry.new(permission: :produce, pattern: "orders.*") }
    let(:raw_entry) { Fila::V1::AclPermission.new(kind: "produce", pattern: "orders.*") }

    it "creates and revokes" do
      answer("CreateApiKey", Fila::V1::CreateApiKeyResponse.new(key_id: "k", secret: "s"))
      key = client.create_api_key("ci", acl: [entry], expires_at: Time.at(5), superadmin: true)
      expect([key.key_id, key.secret]).to eq %w[k s]
      expect(client.revoke_api_key("k")).to be_nil
      expect(broker.seen.map(&:request)).to eq [
        Fila::V1::CreateApiKeyRequest.new(name: "ci", expires_at_ms: 5000, superadmin: true,
                                          acl: [raw_entry]),
        Fila::V1::RevokeApiKeyRequest.new(key_id: "k")
      ]
      expect { client.create_api_key("ci", expires_at: Time.at(0)) }
        .to raise_error(ArgumentError, "expires_at must be after 1970; leave it out for never")
    end

    it "lists" do
      newer = Fila::V1::AclPermission.new(kind: "own", pattern: "*")
      info = Fila::V1::ApiKeyInfo.new(key_id: "k", name: "ci", created_at: at(5), superadmin: false,
                                      acl: [raw_entry, newer])
      answer("ListApiKeys", Fila::V1::ListApiKeysResponse.new("keys" => [info]))
      expect(client.list_api_keys).to eq [
        Fila::ApiKeyInfo.new(
          key_id: "k", name: "ci", created_at: Time.at(5), expires_at: nil, superadmin: false,
          acl: [entry, Fila::AclEntry.new(permission: :own, pattern: "*")]
        )
      ]
    end

    it "sets and reads permissions" do
      answer("GetAcl", Fila::V1::GetAclResponse.new(acl: [raw_entry], superadmin: true))
      expect(client.set_acl("k", [entry])).to be_nil
      expect(client.get_acl("k")).to eq Fila::Acl.new(entries: [entry], superadmin: true)
      expect(request("SetAcl")).to eq Fila::V1::SetAclRequest.new(key_id: "k", acl: [raw_entry])
      wrong = Fila::AclEntry.new(permission: :own, pattern: "*")
      expect { client.set_acl("k", [wrong]) }.to raise_error(
        ArgumentError, "permission must be one of produce, consume, admin, not :own"
      )
    end
  end
end

# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# An error's class comes from its reason, then from its status, never from its text.
RSpec.describe Fila::Error do
  reasons = {
    "QUEUE_NOT_FOUND" => [Fila::QueueNotFoundError, "NOT_FOUND"],
    "MESSAGE_NOT_FOUND" => [Fila::MessageNotFoundError, "NOT_FOUND"],
    "LEASE_EXPIRED" => [Fila::LeaseExpiredError, "FAILED_PRECONDITION"],
    "QUEUE_ALREADY_EXISTS" => [Fila::QueueAlreadyExistsError, "ALREADY_EXISTS"],
    "INVALID_ARGUMENT" => [Fila::InvalidArgumentError, "INVALID_ARGUMENT"],
    "INVALID_SCRIPT" => [Fila::InvalidScriptError, "INVALID_ARGUMENT"],
    "NOT_A_DEAD_LETTER_QUEUE" => [Fila::NotADeadLetterQueueError, "INVALID_ARGUMENT"],
    "PARENT_QUEUE_NOT_FOUND" => [Fila::ParentQueueNotFoundError, "FAILED_PRECONDITION"],
    "MESSAGE_TOO_LARGE" => [Fila::MessageTooLargeError, "INVALID_ARGUMENT"],
    "OVERLOADED" => [Fila::OverloadedError, "RESOURCE_EXHAUSTED"],
    "QUEUE_FULL" => [Fila::QueueFullError, "RESOURCE_EXHAUSTED"],
    "DISK_FULL" => [Fila::DiskFullError, "RESOURCE_EXHAUSTED"],
    "SHUTTING_DOWN" => [Fila::ShuttingDownError, "UNAVAILABLE"],
    "UNAUTHENTICATED" => [Fila::UnauthenticatedError, "UNAUTHENTICATED"],
    "PERMISSION_DENIED" => [Fila::PermissionDeniedError, "PERMISSION_DENIED"],
    "STORAGE_FAILED" => [Fila::StorageFailedError, "INTERNAL"],
    "HOOK_FAILED" => [Fila::HookFailedError, "FAILED_PRECONDITION"],
    "CONFIG_NOT_FOUND" => [Fila::ConfigNotFoundError, "NOT_FOUND"],
    "MESSAGE_LEASED" => [Fila::MessageLeasedError, "FAILED_PRECONDITION"],
    "API_KEY_NOT_FOUND" => [Fila::ApiKeyNotFoundError, "NOT_FOUND"],
    "INTERNAL" => [Fila::InternalError, "INTERNAL"]
  }
  retryable = [Fila::OverloadedError, Fila::QueueFullError, Fila::DiskFullError,
               Fila::ShuttingDownError, Fila::ResourceExhaustedError, Fila::UnavailableError,
               Fila::DeadlineExceededError]

  it "knows every reason of the contract" do
    names = Fila::V1::ErrorReason.constants.map { |name| name.name.delete_prefix("ERROR_REASON_") }
    expect(reasons.keys).to match_array(names - ["UNSPECIFIED"])
  end

  reasons.each do |reason, (kind, code)|
    it "maps the trailer #{reason} to #{kind}" do
      broker.script("DeleteQueue") { refuse(code, "a text about nothing", reason) }
      expect { client.delete_queue("orders") }.to raise_error(kind, "a text about nothing") { |e|
        expect(e).to be_an_instance_of kind
        expect([e.code, e.reason, e.queue, e.message_id]).to eq [code, reason, "orders", nil]
        expect(e.retryable?).to be retryable.include?(kind)
        expect(e.cause).to be_a GRPC::BadStatus
      }
    end

    it "maps the item's reason #{reason} to #{kind}" do
      broker.script("AckBatch") do
        result = Fila::V1::ItemResult.new(error: item_error(reason, "a text"))
        Fila::V1::AckBatchResponse.new(results: [result])
      end
      expect { client.ack("orders", "m-1") }.to raise_error(kind, "a text") { |e|
        expect(e).to be_an_instance_of kind
        expect([e.code, e.reason, e.queue, e.message_id]).to eq [code, reason, "orders", "m-1"]
      }
    end
  end

  {
    "CANCELLED" => Fila::CancelledError, "UNKNOWN" => Fila::InternalError,
    "INVALID_ARGUMENT" => Fila::InvalidArgumentError,
    "DEADLINE_EXCEEDED" => Fila::DeadlineExceededError, "NOT_FOUND" => Fila::QueueNotFoundError,
    "ALREADY_EXISTS" => Fila::QueueAlreadyExistsError,
    "PERMISSION_DENIED" => Fila::PermissionDeniedError,
    "RESOURCE_EXHAUSTED" => Fila::ResourceExhaustedError,
    "FAILED_PRECONDITION" => Fila::InternalError, "ABORTED" => Fila::InternalError,
    "OUT_OF_RANGE" => Fila::InternalError, "UNIMPLEMENTED" => Fila::UnimplementedError,
    "INTERNAL" => Fila::InternalError, "UNAVAILABLE" => Fila::UnavailableError,
    "DATA_LOSS" => Fila::InternalError, "UNAUTHENTICATED" => Fila::UnauthenticatedError
  }.each do |code, kind|
    it "maps the status #{code} without a reason to #{kind}" do
      broker.script("DeleteQueue") { refuse(code, "why") }
      expect { client.delete_queue("orders") }.to raise_error(kind, "why") { |e|
        expect(e).to be_an_instance_of kind
        expect([e.code, e.reason]).to eq [code, nil]
        expect(e.retryable?).to be retryable.include?(kind)
      }
    end
  end

  it "takes NOT_FOUND without a reason for the most specific thing that the call named" do
    %w[DeleteQueue CancelMessage GetConfig EnqueueBatch AckBatch].each do |method|
      broker.script(method) { refuse(:NOT_FOUND, "gone") }
    end
    expect { client.delete_queue("q") }.to raise_error(Fila::QueueNotFoundError)
    expect { client.enqueue("q") }.to raise_error(Fila::QueueNotFoundError)
    expect { client.cancel("q", "m") }.to raise_error(Fila::MessageNotFoundError)
    expect { client.ack("q", "m") }.to raise_error(Fila::MessageNotFoundError)
    expect { client.get_config("k") }.to raise_error(Fila::InternalError)
  end

  it "falls back to the status for a reason that is newer than this SDK" do
    broker.script("DeleteQueue") { refuse(:RESOURCE_EXHAUSTED, "new", "SOMETHING_NEW") }
    expect { client.delete_queue("q") }.to raise_error(Fila::ResourceExhaustedError) { |e|
      expect(e.reason).to eq "SOMETHING_NEW"
    }
    broker.script("AckBatch") do
      error = Fila::V1::ItemError.new(reason: 999, message: "new")
      Fila::V1::AckBatchResponse.new(results: [Fila::V1::ItemResult.new(error:)])
    end
    expect { client.ack("q", "m") }.to raise_error(Fila::InternalError, "new") { |e|
      expect(e.reason).to eq "999"
    }
  end

  it "has a text of its own for each class, used when the broker gives none" do
    kinds = ObjectSpace.each_object(described_class.singleton_class).to_a
    expect(kinds.length).to be >= 28
    expect(kinds.map(&:default_message).uniq.length).to eq kinds.length
    broker.script("DeleteQueue") { refuse(:NOT_FOUND, "", "QUEUE_NOT_FOUND") }
    expect { client.delete_queue("q") }
      .to raise_error(Fila::QueueNotFoundError, "the queue does not exist")
  end

  it "forms one tree" do
    families = {
      Fila::InvalidArgumentError => [Fila::InvalidScriptError, Fila::NotADeadLetterQueueError,
                                     Fila::MessageTooLargeError],
      Fila::ResourceExhaustedError => [Fila::OverloadedError, Fila::QueueFullError,
                                       Fila::DiskFullError],
      Fila::UnavailableError => [Fila::ShuttingDownError],
      Fila::InternalError => [Fila::StorageFailedError]
    }
    families.each { |parent, kinds| expect(kinds.map(&:superclass).uniq).to eq [parent] }
    expect(described_class.superclass).to eq StandardError
  end

  it "keeps a text in any script" do
    broker.script("DeleteQueue") { refuse(:NOT_FOUND, "queue \"größe ☃\" does not exist") }
    expect { client.delete_queue("größe ☃") }
      .to raise_error(Fila::QueueNotFoundError, "queue \"größe ☃\" does not exist")
  end
end

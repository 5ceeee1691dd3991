# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# What can go wrong, as one tree. Knows the contract's names, not gRPC's objects.
#
#   Error
#   |-- QueueNotFoundError        |-- MessageNotFoundError      |-- ConfigNotFoundError
#   |-- ApiKeyNotFoundError       |-- QueueAlreadyExistsError   |-- LeaseExpiredError
#   |-- MessageLeasedError        |-- ParentQueueNotFoundError  |-- HookFailedError
#   |-- UnauthenticatedError      |-- PermissionDeniedError     |-- DeadlineExceededError
#   |-- CancelledError            |-- UnimplementedError        |-- ClientClosedError
#   |-- InvalidArgumentError      > InvalidScriptError, NotADeadLetterQueueError,
#   |                               MessageTooLargeError
#   |-- ResourceExhaustedError    > OverloadedError, QueueFullError, DiskFullError
#   |-- UnavailableError          > ShuttingDownError
#   `-- InternalError             > StorageFailedError
module Fila
  # A call failed. `code` and `reason` are the gRPC status and the broker's reason by name, `queue`
  # and `message_id` what the call was about; each is nil where there is none.
  class Error < StandardError
    attr_reader :code, :reason, :queue, :message_id

    class << self
      # The text of an error for which the broker gave none.
      def default_message
        @default_message || superclass.default_message
      end

      # Whether the same call may succeed later. It does not promise that the first one did nothing:
      # repeating an enqueue that may have been stored needs an idempotency key.
      def retryable?
        @retryable.nil? ? superclass.retryable? : @retryable
      end

      private

      def describe(text, retryable: nil)
        @default_message = text
        @retryable = retryable
      end
    end

    describe "a call failed", retryable: false

    def initialize(message = nil, code: nil, reason: nil, queue: nil, message_id: nil, cause: nil)
      @code = code
      @reason = reason
      @queue = queue
      @message_id = message_id
      @origin = cause
      super(message.nil? || message.empty? ? self.class.default_message : message)
    end

    # Whether the same call may succeed later.
    def retryable?
      self.class.retryable?
    end

    # An error that is a result, and was never raised, has its cause too.
    def cause
      super || @origin
    end

    # One batch's error as the error of one of its items: an object of its own for each caller,
    # because raising an exception writes to it.
    def about(queue, message_id)
      return Errors.of_status(code, reason, message, queue:, message_id:, cause:) if code

      self.class.new(message, queue:, message_id:, cause:)
    end
  end

  # Each says what it means with the text that it has when the broker gives none.

  class QueueNotFoundError < Error
    describe "the queue does not exist"
  end

  class MessageNotFoundError < Error
    describe "the queue holds no such message, or it is not leased"
  end

  class LeaseExpiredError < Error
    describe "the lease token is not the one of the message's current delivery"
  end

  class QueueAlreadyExistsError < Error
    describe "the queue exists already"
  end

  class InvalidArgumentError < Error
    describe "a field is missing, malformed or out of range"
  end

  class InvalidScriptError < InvalidArgumentError
    describe "the Lua source does not compile or defines no hook"
  end

  class NotADeadLetterQueueError < InvalidArgumentError
    describe "the queue is not a dead-letter queue"
  end

  class MessageTooLargeError < InvalidArgumentError
    describe "payload, headers or request exceed a limit"
  end

  class ParentQueueNotFoundError < Error
    describe "the queue that the dead letters came from no longer exists"
  end

  class ResourceExhaustedError < Error
    describe "a limit of the broker or of this client is reached", retryable: true
  end

  class OverloadedError < ResourceExhaustedError
    describe "the broker has more work waiting than it accepts"
  end

  class QueueFullError < ResourceExhaustedError
    describe "the queue holds as many messages as it may"
  end

  class DiskFullError < ResourceExhaustedError
    describe "the broker's data volume is nearly full"
  end

  class UnavailableError < Error
    describe "the broker cannot be reached", retryable: true
  end

  class ShuttingDownError < UnavailableError
    describe "the broker is going away; nothing was done"
  end

  class UnauthenticatedError < Error
    describe "no API key, or not a valid one"
  end

  class PermissionDeniedError < Error
    describe "the API key may not do this"
  end

  class ApiKeyNotFoundError < Error
    describe "no API key has that id"
  end

  class ConfigNotFoundError < Error
    describe "no runtime configuration entry has that key"
  end

  class MessageLeasedError < Error
    describe "the message is leased"
  end

  class HookFailedError < Error
    describe "the queue's on_enqueue hook failed and its policy is to reject"
  end

  class DeadlineExceededError < Error
    describe "no answer came in time; the outcome is unknown", retryable: true
  end

  class CancelledError < Error
    describe "the call was cancelled; the outcome is unknown"
  end

  class UnimplementedError < Error
    describe "the broker does not know this call"
  end

  class InternalError < Error
    describe "the broker failed"
  end

  class StorageFailedError < InternalError
    describe "the broker's store failed; the outcome is unknown"
  end

  class ClientClosedError < Error
    describe "the client is closed"
  end

  # Chooses the class of an error: by the broker's reason, then by status, never by text.
  module Errors
    # The reasons of the contract: the class, and the status that the broker sends with it. Items of
    # a batch carry a reason alone, so the status of an item's error comes from here.
    REASONS = {
      "QUEUE_NOT_FOUND" => [QueueNotFoundError, "NOT_FOUND"],
      "MESSAGE_NOT_FOUND" => [MessageNotFoundError, "NOT_FOUND"],
      "LEASE_EXPIRED" => [LeaseExpiredError, "FAILED_PRECONDITION"],
      "QUEUE_ALREADY_EXISTS" => [QueueAlreadyExistsError, "ALREADY_EXISTS"],
      "INVALID_ARGUMENT" => [InvalidArgumentError, "INVALID_ARGUMENT"],
      "INVALID_SCRIPT" => [InvalidScriptError, "INVALID_ARGUMENT"],
      "NOT_A_DEAD_LETTER_QUEUE" => [NotADeadLetterQueueError, "INVALID_ARGUMENT"],
      "PARENT_QUEUE_NOT_FOUND" => [ParentQueueNotFoundError, "FAILED_PRECONDITION"],
      "MESSAGE_TOO_LARGE" => [MessageTooLargeError, "INVALID_ARGUMENT"],
      "OVERLOADED" => [OverloadedError, "RESOURCE_EXHAUSTED"],
      "QUEUE_FULL" => [QueueFullError, "RESOURCE_EXHAUSTED"],
      "DISK_FULL" => [DiskFullError, "RESOURCE_EXHAUSTED"],
      "SHUTTING_DOWN" => [ShuttingDownError, "UNAVAILABLE"],
      "UNAUTHENTICATED" => [UnauthenticatedError, "UNAUTHENTICATED"],
      "PERMISSION_DENIED" => [PermissionDeniedError, "PERMISSION_DENIED"],
      "STORAGE_FAILED" => [StorageFailedError, "INTERNAL"],
      "HOOK_FAILED" => [HookFailedError, "FAILED_PRECONDITION"],
      "CONFIG_NOT_FOUND" => [ConfigNotFoundError, "NOT_FOUND"],
      "MESSAGE_LEASED" => [MessageLeasedError, "FAILED_PRECONDITION"],
      "API_KEY_NOT_FOUND" => [ApiKeyNotFoundError, "NOT_FOUND"],
      "INTERNAL" => [InternalError, "INTERNAL"]
    }.freeze

    # Statuses that come without a reason: from gRPC itself, a proxy, or a broker newer than this
    # table. Everything that is not listed is an InternalError.
    STATUSES = {
      "ALREADY_EXISTS" => QueueAlreadyExistsError,
      "CANCELLED" => CancelledError,
      "DEADLINE_EXCEEDED" => DeadlineExceededError,
      "INVALID_ARGUMENT" => InvalidArgumentError,
      "PERMISSION_DENIED" => PermissionDeniedError,
      "RESOURCE_EXHAUSTED" => ResourceExhaustedError,
      "UNAUTHENTICATED" => UnauthenticatedError,
      "UNAVAILABLE" => UnavailableError,
      "UNIMPLEMENTED" => UnimplementedError
    }.freeze

    module_function

    # The error of one item of a batch; an unknown reason is an InternalError.
    def of_reason(reason, message, queue: nil, message_id: nil)
      kind, code = REASONS.fetch(reason) { [InternalError, "INTERNAL"] }
      kind.new(message, code:, reason:, queue:, message_id:)
    end

    # The error of a whole call: by its reason if that is known, else by its status.
    def of_status(code, reason, message, queue: nil, message_id: nil, cause: nil)
      kind, = REASONS[reason]
      # What is missing is the most specific thing that the call named.
      kind ||= (message_id ? MessageNotFoundError : QueueNotFoundError) if
        code == "NOT_FOUND" && (message_id || queue)
      kind ||= STATUSES.fetch(code, InternalError)
      kind.new(message, code:, reason:, queue:, message_id:, cause:)
    end
  end
  private_constant :Errors
end

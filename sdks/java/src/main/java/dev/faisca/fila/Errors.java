// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import static java.util.Map.entry;

import java.util.Map;
import java.util.function.Function;

/**
 * Which exception a failure becomes: by the broker's reason, then by the status, never by text.
 * Knows the contract's names, not gRPC's objects.
 */
final class Errors {
  private Errors() {}

  /** An exception, and the status that the broker sends with its reason. */
  private record Kind(Function<CallFailure, FilaException> create, String code) {}

  // Items of a batch carry a reason alone, so the status of an item's error comes from here.
  private static final Map<String, Kind> REASONS =
      Map.ofEntries(
          reason("QUEUE_NOT_FOUND", QueueNotFoundException::new, "NOT_FOUND"),
          reason("MESSAGE_NOT_FOUND", MessageNotFoundException::new, "NOT_FOUND"),
          reason("LEASE_EXPIRED", LeaseExpiredException::new, "FAILED_PRECONDITION"),
          reason("QUEUE_ALREADY_EXISTS", QueueAlreadyExistsException::new, "ALREADY_EXISTS"),
          reason("INVALID_ARGUMENT", InvalidArgumentException::new, "INVALID_ARGUMENT"),
          reason("INVALID_SCRIPT", InvalidScriptException::new, "INVALID_ARGUMENT"),
          reason("NOT_A_DEAD_LETTER_QUEUE", NotADeadLetterQueueException::new, "INVALID_ARGUMENT"),
          reason(
              "PARENT_QUEUE_NOT_FOUND", ParentQueueNotFoundException::new, "FAILED_PRECONDITION"),
          reason("MESSAGE_TOO_LARGE", MessageTooLargeException::new, "INVALID_ARGUMENT"),
          reason("OVERLOADED", OverloadedException::new, "RESOURCE_EXHAUSTED"),
          reason("QUEUE_FULL", QueueFullException::new, "RESOURCE_EXHAUSTED"),
          reason("DISK_FULL", DiskFullException::new, "RESOURCE_EXHAUSTED"),
          reason("SHUTTING_DOWN", ShuttingDownException::new, "UNAVAILABLE"),
          reason("UNAUTHENTICATED", UnauthenticatedException::new, "UNAUTHENTICATED"),
          reason("PERMISSION_DENIED", PermissionDeniedException::new, "PERMISSION_DENIED"),
          reason("STORAGE_FAILED", StorageFailedException::new, "INTERNAL"),
          reason("HOOK_FAILED", HookFailedException::new, "FAILED_PRECONDITION"),
          reason("CONFIG_NOT_FOUND", ConfigNotFoundException::new, "NOT_FOUND"),
          reason("MESSAGE_LEASED", MessageLeasedException::new, "FAILED_PRECONDITION"),
          reason("API_KEY_NOT_FOUND", ApiKeyNotFoundException::new, "NOT_FOUND"),
          reason("INTERNAL", InternalException::new, "INTERNAL"));

  // Statuses that come without a reason: from gRPC itself, a proxy, or a broker newer than this
  // table. Everything that is not listed is an InternalException.
  private static final Map<String, Function<CallFailure, FilaException>> STATUSES =
      Map.ofEntries(
          entry("ALREADY_EXISTS", QueueAlreadyExistsException::new),
          entry("CANCELLED", CancelledException::new),
          entry("DEADLINE_EXCEEDED", DeadlineExceededException::new),
          entry("INVALID_ARGUMENT", InvalidArgumentException::new),
          entry("PERMISSION_DENIED", PermissionDeniedException::new),
          entry("RESOURCE_EXHAUSTED", ResourceExhaustedException::new),
          entry("UNAUTHENTICATED", UnauthenticatedException::new),
          entry("UNAVAILABLE", UnavailableException::new),
          entry("UNIMPLEMENTED", UnimplementedException::new));

  private static Map.Entry<String, Kind> reason(
      String name, Function<CallFailure, FilaException> create, String code) {
    return entry(name, new Kind(create, code));
  }

  /** The error of one item of a batch; an unknown reason is an InternalException. */
  static FilaException fromReason(String reason, String text, String queue, String messageId) {
    Kind kind = REASONS.getOrDefault(reason, REASONS.get("INTERNAL"));
    return kind.create.apply(new CallFailure(text, kind.code, reason, queue, messageId, null));
  }

  /** The error of a whole call: by its reason if that is known, else by its status. */
  static FilaException fromStatus(CallFailure failure) {
    Kind kind = failure.reason() == null ? null : REASONS.get(failure.reason());
    if (kind != null) {
      return kind.create.apply(failure);
    }
    // What is missing is the most specific thing that the call named.
    if ("NOT_FOUND".equals(failure.code()) && failure.messageId() != null) {
      return new MessageNotFoundException(failure);
    }
    if ("NOT_FOUND".equals(failure.code()) && failure.queue() != null) {
      return new QueueNotFoundException(failure);
    }
    return STATUSES.getOrDefault(failure.code(), InternalException::new).apply(failure);
  }

  /** The error of a request as the error of one of its items: an object for each caller. */
  static FilaException about(FilaException error, String queue, String messageId) {
    return about(error, error.getMessage(), queue, messageId);
  }

  static FilaException about(FilaException error, String text, String queue, String messageId) {
    CallFailure failure =
        new CallFailure(text, error.code(), error.reason(), queue, messageId, error.getCause());
    if (error instanceof ClientClosedException) {
      return new ClientClosedException(failure);
    }
    if (error instanceof CancelledException) {
      return new CancelledException(failure);
    }
    return fromStatus(failure);
  }
}

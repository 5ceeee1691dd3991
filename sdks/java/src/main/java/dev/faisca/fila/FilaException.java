// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * A call failed. One subclass per reason of the contract, and per status that comes without one.
 *
 * <pre>
 * FilaException
 * |-- QueueNotFoundException       |-- MessageNotFoundException     |-- ConfigNotFoundException
 * |-- ApiKeyNotFoundException      |-- QueueAlreadyExistsException  |-- LeaseExpiredException
 * |-- MessageLeasedException       |-- ParentQueueNotFoundException |-- HookFailedException
 * |-- UnauthenticatedException     |-- PermissionDeniedException    |-- DeadlineExceededException
 * |-- CancelledException           |-- UnimplementedException       |-- ClientClosedException
 * |-- InvalidArgumentException     &gt; InvalidScript-, NotADeadLetterQueue-, MessageTooLarge-
 * |-- ResourceExhaustedException   &gt; Overloaded-, QueueFull-, DiskFullException
 * |-- UnavailableException         &gt; ShuttingDownException
 * `-- InternalException            &gt; StorageFailedException
 * </pre>
 */
public abstract class FilaException extends Exception {
  private static final long serialVersionUID = 1L;

  private final String code;
  private final String reason;
  private final String queue;
  private final String messageId;

  FilaException(String meaning, CallFailure failure) {
    super(isBlank(failure.text()) ? meaning : failure.text(), failure.cause());
    this.code = failure.code();
    this.reason = failure.reason();
    this.queue = failure.queue();
    this.messageId = failure.messageId();
  }

  private static boolean isBlank(String text) {
    return text == null || text.isEmpty();
  }

  /** The gRPC status by name, such as {@code NOT_FOUND}; null where there is none. */
  public String code() {
    return code;
  }

  /** The broker's reason by name, such as {@code QUEUE_NOT_FOUND}; null where there is none. */
  public String reason() {
    return reason;
  }

  /** The queue that the call named; null if it named none. */
  public String queue() {
    return queue;
  }

  /** The message that the call named; null if it named none. */
  public String messageId() {
    return messageId;
  }

  /**
   * Whether the same call may succeed later. It does not promise that this one did nothing:
   * repeating an enqueue that may have been stored needs an idempotency key.
   */
  public boolean isRetryable() {
    return false;
  }
}

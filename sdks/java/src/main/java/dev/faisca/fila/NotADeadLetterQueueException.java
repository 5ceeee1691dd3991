// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The queue is not a dead-letter queue. */
public final class NotADeadLetterQueueException extends InvalidArgumentException {
  private static final long serialVersionUID = 1L;

  NotADeadLetterQueueException(CallFailure failure) {
    super("the queue is not a dead-letter queue", failure);
  }
}

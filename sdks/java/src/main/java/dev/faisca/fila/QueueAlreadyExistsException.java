// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The queue exists already. */
public final class QueueAlreadyExistsException extends FilaException {
  private static final long serialVersionUID = 1L;

  QueueAlreadyExistsException(CallFailure failure) {
    super("the queue exists already", failure);
  }
}

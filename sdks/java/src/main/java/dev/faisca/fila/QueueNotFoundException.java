// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The queue does not exist. */
public final class QueueNotFoundException extends FilaException {
  private static final long serialVersionUID = 1L;

  QueueNotFoundException(CallFailure failure) {
    super("the queue does not exist", failure);
  }
}

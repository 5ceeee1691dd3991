// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The queue that the dead letters came from no longer exists. */
public final class ParentQueueNotFoundException extends FilaException {
  private static final long serialVersionUID = 1L;

  ParentQueueNotFoundException(CallFailure failure) {
    super("the queue that the dead letters came from no longer exists", failure);
  }
}

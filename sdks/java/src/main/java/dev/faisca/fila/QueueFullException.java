// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The queue holds as many messages as it may. */
public final class QueueFullException extends ResourceExhaustedException {
  private static final long serialVersionUID = 1L;

  QueueFullException(CallFailure failure) {
    super("the queue holds as many messages as it may", failure);
  }
}

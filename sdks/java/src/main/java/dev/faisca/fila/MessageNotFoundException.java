// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The queue holds no such message, or it is not leased. */
public final class MessageNotFoundException extends FilaException {
  private static final long serialVersionUID = 1L;

  MessageNotFoundException(CallFailure failure) {
    super("the queue holds no such message, or it is not leased", failure);
  }
}

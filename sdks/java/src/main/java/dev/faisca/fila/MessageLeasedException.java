// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The message is leased. */
public final class MessageLeasedException extends FilaException {
  private static final long serialVersionUID = 1L;

  MessageLeasedException(CallFailure failure) {
    super("the message is leased", failure);
  }
}

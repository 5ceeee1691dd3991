// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** A field is missing, malformed or out of range. */
public sealed class InvalidArgumentException extends FilaException
    permits InvalidScriptException, NotADeadLetterQueueException, MessageTooLargeException {
  private static final long serialVersionUID = 1L;

  InvalidArgumentException(CallFailure failure) {
    this("a field is missing, malformed or out of range", failure);
  }

  InvalidArgumentException(String meaning, CallFailure failure) {
    super(meaning, failure);
  }
}

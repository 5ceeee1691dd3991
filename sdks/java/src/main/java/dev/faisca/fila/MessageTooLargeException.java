// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** Payload, headers or request exceed a limit. */
public final class MessageTooLargeException extends InvalidArgumentException {
  private static final long serialVersionUID = 1L;

  MessageTooLargeException(CallFailure failure) {
    super("payload, headers or request exceed a limit", failure);
  }
}

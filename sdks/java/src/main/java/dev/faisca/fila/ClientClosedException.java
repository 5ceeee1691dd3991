// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The client is closed. */
public final class ClientClosedException extends FilaException {
  private static final long serialVersionUID = 1L;

  ClientClosedException(CallFailure failure) {
    super("the client is closed", failure);
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** No API key has that id. */
public final class ApiKeyNotFoundException extends FilaException {
  private static final long serialVersionUID = 1L;

  ApiKeyNotFoundException(CallFailure failure) {
    super("no API key has that id", failure);
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** No API key, or not a valid one. */
public final class UnauthenticatedException extends FilaException {
  private static final long serialVersionUID = 1L;

  UnauthenticatedException(CallFailure failure) {
    super("no API key, or not a valid one", failure);
  }
}

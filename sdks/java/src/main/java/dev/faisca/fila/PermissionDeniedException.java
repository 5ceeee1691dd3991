// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The API key may not do this. */
public final class PermissionDeniedException extends FilaException {
  private static final long serialVersionUID = 1L;

  PermissionDeniedException(CallFailure failure) {
    super("the API key may not do this", failure);
  }
}

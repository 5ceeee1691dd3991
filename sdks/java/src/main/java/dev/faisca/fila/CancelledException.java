// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The call was cancelled, or its thread interrupted; the outcome is unknown. */
public final class CancelledException extends FilaException {
  private static final long serialVersionUID = 1L;

  CancelledException(CallFailure failure) {
    super("the call was cancelled; the outcome is unknown", failure);
  }
}

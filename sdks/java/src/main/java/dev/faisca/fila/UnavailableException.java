// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The broker cannot be reached. */
public sealed class UnavailableException extends FilaException permits ShuttingDownException {
  private static final long serialVersionUID = 1L;

  UnavailableException(CallFailure failure) {
    this("the broker cannot be reached", failure);
  }

  UnavailableException(String meaning, CallFailure failure) {
    super(meaning, failure);
  }

  @Override
  public boolean isRetryable() {
    return true;
  }
}

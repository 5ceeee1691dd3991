// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** No answer came in time; the outcome is unknown. */
public final class DeadlineExceededException extends FilaException {
  private static final long serialVersionUID = 1L;

  DeadlineExceededException(CallFailure failure) {
    super("no answer came in time; the outcome is unknown", failure);
  }

  @Override
  public boolean isRetryable() {
    return true;
  }
}

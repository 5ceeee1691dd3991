// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The broker failed. */
public sealed class InternalException extends FilaException permits StorageFailedException {
  private static final long serialVersionUID = 1L;

  InternalException(CallFailure failure) {
    this("the broker failed", failure);
  }

  InternalException(String meaning, CallFailure failure) {
    super(meaning, failure);
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The broker failed. */
public sealed class InternalException extends FilaException permits StorageFailedException {
  private static final long serialVersionUID = 1L;

  InternalException(Failure failure) {
    this("the broker failed", failure);
  }

  InternalException(String meaning, Failure failure) {
    super(meaning, failure);
  }
}

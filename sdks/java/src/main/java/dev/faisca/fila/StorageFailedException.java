// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The broker's store failed; the outcome is unknown. */
public final class StorageFailedException extends InternalException {
  private static final long serialVersionUID = 1L;

  StorageFailedException(CallFailure failure) {
    super("the broker's store failed; the outcome is unknown", failure);
  }
}

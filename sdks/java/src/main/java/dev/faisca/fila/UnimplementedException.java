// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The broker does not know this call. */
public final class UnimplementedException extends FilaException {
  private static final long serialVersionUID = 1L;

  UnimplementedException(CallFailure failure) {
    super("the broker does not know this call", failure);
  }
}

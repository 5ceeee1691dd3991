// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The broker is going away; nothing was done. */
public final class ShuttingDownException extends UnavailableException {
  private static final long serialVersionUID = 1L;

  ShuttingDownException(CallFailure failure) {
    super("the broker is going away; nothing was done", failure);
  }
}

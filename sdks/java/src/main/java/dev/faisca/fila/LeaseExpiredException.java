// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The lease token is not the one of the message's current delivery. */
public final class LeaseExpiredException extends FilaException {
  private static final long serialVersionUID = 1L;

  LeaseExpiredException(CallFailure failure) {
    super("the lease token is not the one of the message's current delivery", failure);
  }
}

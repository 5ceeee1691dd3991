// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The broker has more work waiting than it accepts. */
public final class OverloadedException extends ResourceExhaustedException {
  private static final long serialVersionUID = 1L;

  OverloadedException(CallFailure failure) {
    super("the broker has more work waiting than it accepts", failure);
  }
}

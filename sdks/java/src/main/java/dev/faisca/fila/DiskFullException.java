// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The broker's data volume is nearly full. */
public final class DiskFullException extends ResourceExhaustedException {
  private static final long serialVersionUID = 1L;

  DiskFullException(CallFailure failure) {
    super("the broker's data volume is nearly full", failure);
  }
}

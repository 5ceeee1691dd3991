// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** A limit of the broker or of this client is reached. */
public sealed class ResourceExhaustedException extends FilaException
    permits OverloadedException, QueueFullException, DiskFullException {
  private static final long serialVersionUID = 1L;

  ResourceExhaustedException(CallFailure failure) {
    this("a limit of the broker or of this client is reached", failure);
  }

  ResourceExhaustedException(String meaning, CallFailure failure) {
    super(meaning, failure);
  }

  @Override
  public boolean isRetryable() {
    return true;
  }
}

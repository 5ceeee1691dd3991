// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.util.Objects;

/**
 * Carries a {@link FilaException} through an iteration, which cannot throw a checked one; its cause
 * is never null. The counterpart of {@link java.io.UncheckedIOException}.
 */
public final class UncheckedFilaException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  UncheckedFilaException(FilaException cause) {
    super(cause.getMessage(), Objects.requireNonNull(cause));
  }

  @Override
  public synchronized FilaException getCause() {
    return (FilaException) super.getCause();
  }
}

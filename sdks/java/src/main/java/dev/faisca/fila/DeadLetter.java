// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * Thrown by a {@link Handler}: trying again would not help. The message becomes a dead letter at
 * once, whatever attempts are left.
 */
public final class DeadLetter extends RuntimeException {
  private static final long serialVersionUID = 1L;

  /** Gives the message up; the reason is its last error. */
  public DeadLetter(String reason) {
    super(reason);
  }

  /** Like the other form, with what led to it. */
  public DeadLetter(String reason, Throwable cause) {
    super(reason, cause);
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The queue's on_enqueue hook failed and its policy is to reject. */
public final class HookFailedException extends FilaException {
  private static final long serialVersionUID = 1L;

  HookFailedException(CallFailure failure) {
    super("the queue's on_enqueue hook failed and its policy is to reject", failure);
  }
}

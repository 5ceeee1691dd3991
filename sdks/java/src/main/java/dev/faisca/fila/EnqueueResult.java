// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * What became of one message of {@link FilaClient#enqueueMany}.
 *
 * @param messageId the id that the broker gave it; empty when there is an error
 * @param isDuplicate true when the idempotency key was known, so that nothing new was stored
 * @param error what kept the message from being stored; null if it was
 */
public record EnqueueResult(String messageId, boolean isDuplicate, FilaException error) {

  /** The message's id. Throws the error if there is one. */
  public String orThrow() throws FilaException {
    if (error != null) {
      throw error;
    }
    return messageId;
  }
}

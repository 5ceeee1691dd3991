// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * What became of one message of {@link FilaClient#ackMany} or {@link FilaClient#nackMany}.
 *
 * @param messageId the message
 * @param error what kept it from being settled; null if it was
 */
public record SettleResult(String messageId, FilaException error) {

  /** Throws the error if there is one. */
  public void orThrow() throws FilaException {
    if (error != null) {
      throw error;
    }
  }
}

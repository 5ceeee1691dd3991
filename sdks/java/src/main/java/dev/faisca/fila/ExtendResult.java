// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Instant;

/**
 * What became of one message of {@link FilaClient#extendMany}.
 *
 * @param messageId the message
 * @param leaseExpiresAt the new end of its lease; null when there is an error
 * @param error what kept it from being prolonged; null if it was
 */
public record ExtendResult(String messageId, Instant leaseExpiresAt, FilaException error) {

  /** The new end of the lease. Throws the error if there is one. */
  public Instant orThrow() throws FilaException {
    if (error != null) {
      throw error;
    }
    return leaseExpiresAt;
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** Where a message is in its life. */
public enum MessageState {
  /** Waiting for its turn. */
  PENDING,
  /** Waiting for its time. */
  DELAYED,
  /** Handed to a consumer and not settled. */
  LEASED
}

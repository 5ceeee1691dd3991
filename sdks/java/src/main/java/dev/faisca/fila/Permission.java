// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** What an API key may be allowed to do on a pattern of queue names. */
public enum Permission {
  /** Enqueue. */
  PRODUCE,
  /** Consume, receive, settle and extend. */
  CONSUME,
  /** Everything else that names a matching queue. */
  ADMIN
}

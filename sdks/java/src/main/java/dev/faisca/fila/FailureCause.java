// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The kinds of failure. */
public enum FailureCause {
  /** A consumer nacked the delivery. */
  NACK,
  /** The delivery's lease ran out. */
  EXPIRED,
  /** Dead-lettered: as many attempts as the queue allows. */
  MAX_ATTEMPTS,
  /** Dead-lettered: the on_failure hook said so. */
  HOOK
}

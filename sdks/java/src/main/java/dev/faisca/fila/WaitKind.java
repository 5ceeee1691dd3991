// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** The kinds of waiting. */
public enum WaitKind {
  /** A token bucket is empty. */
  THROTTLED,
  /** As many messages with a throttle key are leased as its limit allows. */
  CONCURRENCY,
  /** Others come first. */
  TURN,
  /** The message's time has not come. */
  DELAYED,
  /** The queue or the key is paused. */
  PAUSED,
  /** Nobody consumes the queue, or every consumer's credit is used up. */
  NO_CREDIT,
  /** The message is with a consumer. */
  LEASED,
  /** A consumer reported backpressure for a throttle key. */
  BACKPRESSURE,
  /** Not a wait: the hook was bypassed, so the message runs under the default key. */
  HOOK_BYPASSED
}

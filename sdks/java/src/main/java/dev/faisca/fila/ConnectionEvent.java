// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * What became of a client's connection. Each is told once per change, never per attempt; a client
 * that nobody uses connects to nothing and tells nothing.
 *
 * @param kind what happened
 * @param reason why, in words; null where it is not known
 */
public record ConnectionEvent(Kind kind, String reason) {

  /** What can happen to a connection. */
  public enum Kind {
    /** The broker is there, for the first time or again. */
    CONNECTED,
    /** The connection has ended. The next call, or a consumer at once, connects again. */
    LOST,
    /** The broker could not be reached. It is tried again, without another event. */
    UNREACHABLE
  }
}

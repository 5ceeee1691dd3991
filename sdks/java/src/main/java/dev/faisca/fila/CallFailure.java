// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/** What is known of a failed call; the fields of a {@link FilaException}, any of them null. */
record CallFailure(
    String text, String code, String reason, String queue, String messageId, Throwable cause) {

  /** A failure that this client noticed itself, before any status came. */
  static CallFailure local(String text, String queue, String messageId) {
    return new CallFailure(text, null, null, queue, messageId, null);
  }
}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Instant;

/**
 * One failure of a message.
 *
 * @param failedAt when it happened, on the broker's clock; null if it does not say
 * @param cause what kind of failure it was; null for a kind newer than this client
 * @param error what was said about it, cut to 256 bytes
 */
public record Failure(Instant failedAt, FailureCause cause, String error) {}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.util.List;

/**
 * Some messages, oldest first.
 *
 * @param messages the messages found
 * @param nextPosition continue from here; 0 when there is nothing further
 * @param endPosition the position after the newest message: a cutoff for a consistent scan
 */
public record PeekPage(List<PeekedMessage> messages, long nextPosition, long endPosition) {}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * How much went with a queue.
 *
 * @param messages messages, leased and delayed ones included
 * @param deadLetters dead letters
 */
public record DeletedQueue(long messages, long deadLetters) {}

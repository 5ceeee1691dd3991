// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * One message as it lies in its queue.
 *
 * @param message the message; it carries no lease token
 * @param state where it is in its life; null for a state newer than this client
 * @param position its place in the order of enqueue
 */
public record PeekedMessage(Message message, MessageState state, long position) {}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * One element of a batch request, and what an error about it should name.
 *
 * @param bytes what it takes in the request, its tag and length included
 * @param messageId null for a message that has no id yet
 * @param isRepeatable whether it may be sent again after a failure that leaves open if it was
 *     applied
 * @param frameSize of an ack: how many messages came together with its own; 0 if nobody knows
 */
record Item<I>(
    I request, int bytes, String queue, String messageId, boolean isRepeatable, int frameSize) {}

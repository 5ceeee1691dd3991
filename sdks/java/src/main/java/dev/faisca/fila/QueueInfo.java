// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * One row of the list of queues.
 *
 * @param name the queue's name
 * @param depth messages that wait for a delivery and are not delayed
 * @param inFlight messages that are leased
 * @param activeConsumers open consume streams
 * @param leaderNodeId the broker that leads the queue; 0 outside a cluster
 * @param isPaused true while the whole queue is paused
 * @param deadLetterOf the queue that these dead letters came from; empty for an ordinary queue
 * @param delayed messages that wait for their time
 */
public record QueueInfo(
    String name,
    long depth,
    int inFlight,
    int activeConsumers,
    long leaderNodeId,
    boolean isPaused,
    String deadLetterOf,
    long delayed) {}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

/**
 * What happened in a queue since the broker started.
 *
 * @param enqueued messages accepted, redriven ones included
 * @param delivered deliveries made
 * @param acked messages acked
 * @param nacked deliveries nacked
 * @param expired leases that ran out
 * @param deadLettered messages moved to the dead-letter queue
 * @param timedOut messages dropped by their time to live
 * @param duplicates enqueues answered with an earlier message by idempotency key
 */
public record QueueCounters(
    long enqueued,
    long delivered,
    long acked,
    long nacked,
    long expired,
    long deadLettered,
    long timedOut,
    long duplicates) {}

// SPDX-License-Identifier: AGPL-3.0-only
package dev.faisca.fila;

import java.time.Duration;

/**
 * All settings of a queue; zero and empty mean the default.
 *
 * @param onEnqueueScript Lua source that defines on_enqueue(msg)
 * @param onFailureScript Lua source that defines on_failure(msg, error, attempts)
 * @param visibilityTimeout how long a lease lasts
 * @param maxAttempts failed or expired deliveries after which a message is dead-lettered
 * @param retryDelay wait before the first retry; doubles with each further attempt
 * @param retryDelayMax the longest wait that doubling reaches
 * @param defaultTtl time to live of messages that have none of their own
 * @param idempotencyWindow how long idempotency keys are remembered
 * @param maxMessages enqueues are refused while the queue holds this many messages
 * @param onHookError what happens when on_enqueue fails
 * @param hookTimeout the longest a hook call may run
 * @param hookMemoryLimitBytes the most memory a hook may hold
 * @param quantum messages per unit of weight and turn
 */
public record QueueConfig(
    String onEnqueueScript,
    String onFailureScript,
    Duration visibilityTimeout,
    int maxAttempts,
    Duration retryDelay,
    Duration retryDelayMax,
    Duration defaultTtl,
    Duration idempotencyWindow,
    long maxMessages,
    HookErrorPolicy onHookError,
    Duration hookTimeout,
    long hookMemoryLimitBytes,
    int quantum) {}

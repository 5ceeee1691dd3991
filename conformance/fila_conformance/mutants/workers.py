# SPDX-License-Identifier: AGPL-3.0-only
"""Mutants in workers."""

from fila_conformance.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "outcomes-are-kept-quiet",
        "does not tell the broker what became of a message",
        ("worker/message-is-acked-when-its-handler-returns",),
    ),
    Mutant(
        "failures-are-acked",
        "takes a handler's failure for its end",
        (
            "worker/message-is-nacked-when-its-handler-fails",
            "worker-end/failure-during-a-drain-is-told",
            "worker/batch-has-one-outcome[fail]",
        ),
    ),
    Mutant(
        "failures-without-a-text",
        "does not say what went wrong",
        ("worker/message-is-nacked-when-its-handler-fails",),
    ),
    Mutant(
        "backpressure-is-a-failure",
        "counts an attempt for backpressure",
        ("worker/backpressure-counts-no-attempt",),
    ),
    Mutant(
        "backpressure-without-its-key",
        "puts off one message where its key is to rest",
        ("worker/backpressure-of-a-throttle-key-holds-for-others",),
    ),
    Mutant(
        "dead-letter-is-a-failure",
        "tries what is hopeless again",
        ("worker/hopeless-message-is-a-dead-letter",),
    ),
    Mutant(
        "handlers-take-for-ever",
        "does not look at the clock",
        ("worker/handler-that-takes-too-long-has-failed",),
    ),
    Mutant(
        "handlers-time-out-at-once",
        "looks at the clock too early",
        ("worker/handler-that-is-quick-enough-has-no-timeout",),
    ),
    Mutant(
        "slow-handlers-are-replaced",
        "forgets handlers that took too long and still run",
        ("worker/handler-that-took-too-long-keeps-its-place",),
    ),
    Mutant(
        "settled-twice",
        "settles what its handler has settled",
        (
            "worker/handler-that-settled-by-itself-is-believed",
            "worker/settled-message-of-a-batch-is-left-alone",
        ),
    ),
    Mutant(
        "settlement-ends-the-worker",
        "stops because a settlement failed",
        ("worker/settlement-that-fails-is-no-failure-of-the-worker",),
    ),
    Mutant(
        "one-handler-at-a-time",
        "is not concurrent",
        (
            "worker/concurrency-is-reached-and-kept[4]",
            "worker/ten-at-a-time-by-default",
        ),
    ),
    Mutant(
        "one-handler-too-many",
        "is more concurrent than it may be",
        (
            "worker/concurrency-is-reached-and-kept[1]",
            "worker/concurrency-is-reached-and-kept[4]",
            "worker/batch-is-what-is-there",
        ),
    ),
    Mutant(
        "prefetch-of-a-thousand",
        "takes whatever it gets",
        (
            "worker/prefetch-is-asked-for[default]",
            "worker/prefetch-is-asked-for[told]",
            "worker/prefetch-bounds-what-is-leased",
            "worker/two-workers-share-the-work",
        ),
    ),
    Mutant(
        "worker-of-the-queues-timeout",
        "does not ask for the leases that were chosen",
        ("worker/worker-chooses-its-visibility-timeout",),
    ),
    Mutant(
        "batches-linger",
        "waits until a batch is full",
        ("worker/batch-is-what-is-there",),
    ),
    Mutant(
        "outcome-is-the-firsts",
        "acks the rest of a batch that failed",
        (
            "worker/batch-has-one-outcome[fail]",
            "worker/batch-has-one-outcome[dead_letter]",
        ),
    ),
    Mutant(
        "handled-messages-are-not-kept",
        "lets the lease end while a handler runs",
        ("worker/leases-last-as-long-as-handlers",),
    ),
    Mutant(
        "acked-before-it-is-handled",
        "loses what its process was handling",
        ("worker-end/message-of-a-crashed-process-comes-back",),
    ),
    Mutant(
        "stop-has-no-grace",
        "cuts handlers off",
        (
            "worker-end/stop-drains",
            "worker-end/failure-during-a-drain-is-told",
        ),
    ),
    Mutant(
        "grace-has-no-end",
        "waits for a handler that does not end",
        ("worker-end/grace-ends",),
    ),
    Mutant(
        "cut-off-is-a-failure",
        "counts an attempt of what it cut off",
        ("worker-end/grace-ends",),
    ),
    Mutant(
        "worker-swallows-its-error",
        "ends in silence",
        (
            "worker-end/unknown-queue-ends-the-worker",
            "worker-end/missing-permission-ends-the-worker-after-its-handlers",
        ),
    ),
    Mutant(
        "worker-fails-before-its-handlers-end",
        "leaves its handlers alone when it fails",
        ("worker-end/missing-permission-ends-the-worker-after-its-handlers",),
    ),
    Mutant(
        "worker-stops-late",
        "takes its time to stop",
        ("worker-end/idle-worker-stops-at-once",),
    ),
    Mutant(
        "worker-fails-with-its-client",
        "takes the end of its client for an error",
        ("worker-end/closing-the-client-ends-its-worker",),
    ),
)

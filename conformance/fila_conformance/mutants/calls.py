# SPDX-License-Identifier: AGPL-3.0-only
"""Mutants in calls."""

from fila_conformance.mutants.mutant import Mutant
from fila_conformance.outcome import Verdict

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "drop-headers",
        "loses the headers of what is enqueued",
        ("headers/key-case-preserved", "lifecycle/received-message-has-every-field"),
    ),
    Mutant(
        "lowercase-header-keys",
        "treats header keys as HTTP's",
        ("headers/key-case-preserved",),
    ),
    Mutant(
        "decode-payload-as-utf8",
        "takes payloads for text",
        ("payload/all-256-byte-values",),
    ),
    Mutant(
        "attempt-off-by-one",
        "counts the delivery that is under way",
        ("attempts/first-delivery-is-zero-then-nack-increments",),
    ),
    Mutant(
        "not-found-always-queue",
        "takes every NOT_FOUND for a missing queue",
        ("errors/second-ack-is-message-not-found", "errors/ack-and-nack-unknown-message"),
    ),
    Mutant(
        "reason-ignored",
        "chooses errors by status alone",
        (
            "errors/every-reason-in-a-trailer-maps-to-its-kind[LEASE_EXPIRED]",
            "errors/every-reason-in-a-trailer-maps-to-its-kind[QUEUE_FULL]",
        ),
    ),
    Mutant(
        "retry-ambiguous-enqueue",
        "sends an enqueue again that may have been stored",
        (
            "retries/enqueue-without-key-is-sent-once",
            "reconnect/ambiguous-enqueue-is-not-duplicated",
        ),
    ),
    Mutant(
        "retry-everything",
        "sends again whatever the failure",
        (
            "retries/only-unavailable-is-retried[INTERNAL]",
            "retries/settlement-is-repeated-only-after-unavailable",
        ),
    ),
    Mutant(
        "no-default-deadline",
        "lets a call last an hour unless told otherwise",
        ("deadlines/unary-default-is-five-seconds",),
    ),
    Mutant(
        "ignore-call-timeout",
        "does not listen to the timeout of a call",
        ("deadlines/per-call-overrides-default",),
    ),
    Mutant(
        "receive-deadline-without-wait",
        "cuts a receive off before its wait is over",
        ("receive/wait-is-not-cut-by-the-deadline", "deadlines/receive-adds-its-wait"),
    ),
    Mutant(
        "ignore-cancel",
        "goes on with what was cancelled",
        ("coalescing/cancelled-call-returns-promptly",),
        flavour="async",
    ),
    Mutant(
        "cancel-takes-the-batch-along",
        "cancels a request because one of its callers left",
        ("coalescing/giving-up-leaves-the-others-undisturbed",),
        flavour="async",
    ),
    Mutant(
        "failures-forgotten",
        "does not say how a message failed before",
        ("attempts/failures-are-remembered", "attempts/failure-history-is-short"),
    ),
    Mutant(
        "dead-letters-always-go",
        "deletes dead letters that were to be kept",
        ("admin/delete-can-keep-the-dead-letters",),
    ),
    Mutant(
        "entries-one-by-one",
        "sets several entries with a request each",
        ("admin/entries-are-set-together",),
    ),
    Mutant(
        "expiry-lost",
        "makes keys that never expire",
        ("auth/expired-key-is-unauthenticated",),
    ),
    Mutant(
        "throttle-pause-without-end",
        "does not send how long a throttle key is to rest",
        ("throttling/throttle-pause-ends-by-itself",),
    ),
    Mutant(
        "all-throttles-are-listed",
        "lists configured throttle keys among those that nobody configured",
        ("throttling/keys-that-nobody-configured-are-listed",),
    ),
    Mutant(
        "retries-without-pause",
        "repeats as fast as it can",
        (
            "retries/settling-again-ends-with-the-deadline",
            "retries/retrying-ends-with-the-deadline",
        ),
    ),
    Mutant(
        "flush-at-once",
        "does not wait for answers",
        (
            "shutdown/flush-waits-for-every-kind-of-call[EnqueueBatch]",
            "shutdown/flush-covers-what-waits-for-its-turn",
            "shutdown/flush-has-a-deadline",
            "shutdown/close-waits-for-what-was-promised",
        ),
    ),
    Mutant(
        "flush-without-extensions",
        "flushes all but extensions",
        ("shutdown/flush-waits-for-every-kind-of-call[ExtendLease]",),
    ),
    Mutant(
        "flush-until-success",
        "waits for success where an answer would do",
        ("shutdown/flush-does-not-mind-failures",),
    ),
    Mutant(
        "flush-without-end",
        "flushes for as long as it takes",
        ("shutdown/flush-has-a-deadline",),
    ),
    Mutant(
        "close-cuts-off",
        "breaks at the end what it promised",
        (
            "shutdown/close-waits-for-what-was-promised",
            "shutdown/acks-under-way-survive-close",
        ),
    ),
    Mutant(
        "close-takes-its-time",
        "waits for a broker that does not answer",
        ("shutdown/close-is-bounded",),
    ),
    Mutant(
        "duplicates-not-told",
        "does not say which messages were known",
        ("idempotency/batch-tells-duplicates",),
    ),
    Mutant(
        "one-error-fails-all",
        "fails a whole batch for one of its items",
        ("batch/one-bad-item-fails-alone", "coalescing/one-callers-error-is-not-the-others"),
    ),
    Mutant(
        "no-coalescing",
        "sends every call as a request of its own",
        ("coalescing/two-hundred-enqueues-share-few-requests",),
    ),
    Mutant(
        "sync-lock-across-calls",
        "lets one call wait for another",
        ("concurrency/slow-call-does-not-hold-up-another",),
    ),
    Mutant(
        "leak-api-key-in-error",
        "repeats the key where the broker does",
        ("auth/api-key-never-appears-in-error-text",),
    ),
    Mutant(
        "no-key-on-stream",
        "sends the key with calls only",
        ("auth/api-key-sent-as-bearer-on-unary-and-stream",),
    ),
    Mutant(
        "ignore-tls",
        "connects without TLS although it was asked for",
        ("tls/tls-client-to-plaintext-port-fails-fast", "tls/private-ca-verified"),
    ),
    Mutant(
        "anonymous",
        "does not say which SDK it is",
        ("connection/user-agent-names-the-sdk",),
    ),
    Mutant(
        "grpcs-receive-limit",
        "leaves the receive limit at gRPC's 4 MiB",
        ("connection/answer-larger-than-grpcs-default",),
    ),
    Mutant(
        "overwrite-traceparent",
        "replaces the trace context that the producer chose",
        ("tracing/caller-supplied-traceparent-untouched",),
    ),
    Mutant(
        "trace-in-metadata-only",
        "does not put the trace into the message",
        ("tracing/active-span-injected-as-traceparent",),
    ),
    Mutant(
        "process-in-a-trace-of-its-own",
        "does not follow the span that sent a message",
        ("tracing/processing-is-below-its-sender-and-linked-to-it",),
    ),
    Mutant(
        "hang-on-close",
        "takes its time to close",
        ("shutdown/close-ends-open-consumer-cleanly",),
    ),
    Mutant(
        "closed-means-unavailable",
        "reports a closed client as a broker that is away",
        ("shutdown/use-after-close-is-client-closed",),
    ),
    Mutant(
        "chatty-driver",
        "prints to standard output",
        ("lifecycle/enqueue-returns-unique-ordered-ids",),
        verdict=Verdict.COULD_NOT_RUN,
    ),
    Mutant(
        "undeclared-field",
        "adds a field that the protocol does not have",
        ("lifecycle/enqueue-returns-unique-ordered-ids",),
        is_crash=True,
    ),
)

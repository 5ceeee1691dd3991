# SPDX-License-Identifier: AGPL-3.0-only
"""The table of mutants: defective drivers, and the cases that must catch each.

A case that never failed proves nothing. A mutant is the Python driver with one defect, which
conformance/mutants/defects.py puts into it under the same name; selftest.py runs them.
"""

from dataclasses import dataclass

from fila_conformance.outcome import Verdict


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect. Every case that is named must fail on it."""

    name: str
    about: str
    killed_by: tuple[str, ...]
    flavour: str = "sync"
    # How it is caught. A crash would also hide that a defect no longer fits the SDK.
    verdict: Verdict = Verdict.FAIL
    is_crash: bool = False


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
        "deadline-on-stream",
        "gives streams the deadline of calls",
        ("deadlines/stream-carries-no-deadline",),
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
        "ignore-stop",
        "keeps a consumer open that was closed",
        ("streaming/stop-while-blocked-returns-promptly",),
    ),
    Mutant(
        "never-reconnect",
        "ends a consumer with its connection",
        ("streaming/ended-stream-is-opened-again", "reconnect/reset-mid-stream-loses-nothing"),
    ),
    Mutant(
        "hot-loop-reconnect",
        "dials a broker that is away without pause",
        ("reconnect/backoff-is-bounded",),
    ),
    Mutant(
        "swallow-stream-error",
        "ends a consumer in silence when the broker refuses it",
        (
            "streaming/terminal-error-reaches-the-iterator",
            "errors/consume-unknown-queue-fails-by-first-message",
        ),
    ),
    Mutant(
        "unread-kept",
        "keeps leases on what nobody will read",
        (
            "streaming/stop-early-gives-back-unread",
            "shutdown/close-gives-back-unread",
            "worker/stop-drains",
        ),
    ),
    Mutant(
        "unbounded-credit",
        "takes more messages than the application asked for",
        ("streaming/slow-reader-bounds-in-flight",),
    ),
    Mutant(
        "old-credit",
        "takes 256 messages when told nothing",
        ("streaming/default-credit-is-64",),
    ),
    Mutant(
        "unread-given-back-one-by-one",
        "gives back what nobody read message by message",
        ("leases/closed-consumer-keeps-no-leases",),
    ),
    Mutant(
        "leases-not-kept",
        "extends nothing by itself",
        (
            "leases/slow-reader-gets-no-message-twice",
            "leases/frames-are-extended-by-their-tokens",
            "leases/leases-outlive-their-stream",
            "worker/leases-last-as-long-as-handlers",
        ),
    ),
    Mutant(
        "leases-without-end",
        "hands out what has long been somebody else's",
        (
            "leases/what-expired-is-not-handed-out",
            "leases/nothing-is-handed-out-after-its-lease",
        ),
    ),
    Mutant(
        "lost-frames-are-kept",
        "does not listen when the broker says that a lease is over",
        ("leases/lost-frame-is-not-handed-out", "worker/lost-message-is-not-handled"),
    ),
    Mutant(
        "extension-given-up",
        "takes one failed request for the end of a lease",
        ("leases/extension-is-tried-again",),
    ),
    Mutant(
        "extended-for-ever",
        "extends what the application has long taken",
        ("leases/what-was-handed-out-is-not-extended",),
    ),
    Mutant(
        "leases-by-the-wall-clock",
        "believes that its clock is the broker's",
        ("leases/nothing-is-handed-out-after-its-lease",),
    ),
    Mutant(
        "unknown-extensions-asked-again",
        "does not extend where the broker knows no grants",
        ("leases/broker-without-grants-extends-message-by-message",),
    ),
    Mutant(
        "lost-stream-takes-frames-along",
        "forgets with a stream what it read from it",
        ("leases/leases-outlive-their-stream",),
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
        "ignore-lease-token",
        "settles by message id alone",
        ("leases/stale-token-is-refused", "leases/delivered-message-settles-with-its-own-token"),
    ),
    Mutant(
        "retry-after-dropped",
        "turns backpressure into failure",
        (
            "throttling/retry-after-zero-comes-back-at-once",
            "throttling/retry-after-burns-no-attempt",
        ),
    ),
    Mutant(
        "hopeless-is-a-failure",
        "does not say that trying again would not help",
        (
            "attempts/hopeless-message-is-a-dead-letter-at-once",
            "grants/grant-that-is-hopeless",
            "worker/hopeless-message-is-a-dead-letter",
        ),
    ),
    Mutant(
        "settlements-sent-once",
        "gives up on a settlement that may not have arrived",
        (
            "retries/settlement-with-its-token-is-sent-again",
            "reconnect/ack-whose-answer-was-lost-succeeds",
            "reconnect/nack-whose-answer-was-lost-succeeds",
        ),
    ),
    Mutant(
        "frames-sent-once",
        "gives up on a frame that may not have arrived",
        ("reconnect/frame-whose-answer-was-lost-is-acked",),
    ),
    Mutant(
        "tokenless-settlements-repeated",
        "settles again what may be another delivery by then",
        ("retries/settlement-without-a-token-is-sent-once",),
    ),
    Mutant(
        "grants-settled-twice",
        "settles a grant again",
        ("retries/settlement-of-a-grant-is-sent-once",),
    ),
    Mutant(
        "repeats-taken-at-their-word",
        "fails because its first attempt succeeded",
        (
            "retries/repeat-that-finds-nothing-succeeded-before",
            "reconnect/ack-whose-answer-was-lost-succeeds",
            "worker/worker-settles-although-answers-get-lost",
        ),
    ),
    Mutant(
        "lease-expired-is-an-ack",
        "takes a message that is still there for acked",
        ("retries/repeated-ack-whose-lease-ended-fails",),
    ),
    Mutant(
        "gone-is-always-success",
        "settles what nobody has",
        ("retries/first-answer-is-taken-at-its-word",),
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
        "failures-are-acked",
        "takes a handler's failure for its end",
        (
            "worker/message-is-nacked-when-its-handler-fails",
            "worker/failure-during-a-drain-is-told",
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
        ("worker/message-of-a-crashed-process-comes-back",),
    ),
    Mutant(
        "stop-has-no-grace",
        "cuts handlers off",
        (
            "worker/stop-drains",
            "worker/failure-during-a-drain-is-told",
        ),
    ),
    Mutant(
        "grace-has-no-end",
        "waits for a handler that does not end",
        ("worker/grace-ends",),
    ),
    Mutant(
        "cut-off-is-a-failure",
        "counts an attempt of what it cut off",
        ("worker/grace-ends",),
    ),
    Mutant(
        "worker-swallows-its-error",
        "ends in silence",
        (
            "worker/unknown-queue-ends-the-worker",
            "worker/missing-permission-ends-the-worker-after-its-handlers",
        ),
    ),
    Mutant(
        "worker-fails-before-its-handlers-end",
        "leaves its handlers alone when it fails",
        ("worker/missing-permission-ends-the-worker-after-its-handlers",),
    ),
    Mutant(
        "worker-stops-late",
        "takes its time to stop",
        ("worker/idle-worker-stops-at-once",),
    ),
    Mutant(
        "worker-fails-with-its-client",
        "takes the end of its client for an error",
        ("worker/closing-the-client-ends-its-worker",),
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
        "frames-one-by-one",
        "acks whole frames message by message",
        ("grants/acks-of-a-whole-frame-travel-as-one",),
    ),
    Mutant(
        "grants-without-a-count",
        "settles a grant whatever is left of it",
        (
            "grants/acks-of-a-whole-frame-travel-as-one",
            "grants/frame-of-which-something-is-gone-has-an-outcome-per-message",
        ),
    ),
    Mutant(
        "refused-frames-are-lost",
        "does not ack one by one what a grant was refused for",
        ("grants/frame-of-which-something-is-gone-has-an-outcome-per-message",),
    ),
    Mutant(
        "exceptions-forgotten",
        "settles the messages of a grant that are to be left alone",
        ("grants/all-but-some-of-a-grant",),
    ),
    Mutant(
        "unknown-grants-asked-again",
        "does not fall back where the broker knows no grants",
        ("grants/broker-without-grants-is-asked-once",),
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

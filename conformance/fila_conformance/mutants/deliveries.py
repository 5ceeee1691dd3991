# SPDX-License-Identifier: AGPL-3.0-only
"""Mutants in consumers, leases and settlements."""

from fila_conformance.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "deadline-on-stream",
        "gives streams the deadline of calls",
        ("deadlines/stream-carries-no-deadline",),
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
            "worker-end/stop-drains",
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
            "worker-end/worker-settles-although-its-connection-breaks",
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
)

# SPDX-License-Identifier: AGPL-3.0-only
"""Mutants in what operates a broker, in what errors say, and in what many share."""

from fila_conformance.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "update-names-every-setting",
        "sets to the default what an update did not name",
        ("operating/update-changes-what-is-named",),
    ),
    Mutant(
        "peek-at-any-state",
        "shows messages in whatever state",
        ("operating/peek-shows-and-leases-nothing",),
    ),
    Mutant(
        "peek-from-the-beginning",
        "begins each page with the oldest message",
        ("operating/peek-goes-on-where-it-ended",),
    ),
    Mutant(
        "purge-takes-all-keys",
        "purges the queue where a key was named",
        ("operating/purge-drops-what-waits",),
    ),
    Mutant(
        "pause-takes-the-queue",
        "pauses the queue where a key was named",
        ("operating/pause-of-one-key",),
    ),
    Mutant(
        "resume-pauses",
        "pauses what it should resume",
        ("operating/pause-and-resume",),
    ),
    Mutant(
        "leased-means-not-found",
        "takes a leased message for one that is gone",
        ("operating/cancel-message",),
    ),
    Mutant(
        "explanation-without-reasons",
        "explains everything by its turn",
        ("operating/explain-a-message", "operating/pause-and-resume"),
    ),
    Mutant(
        "deletion-sets-to-nothing",
        "sets an entry to nothing instead of deleting it",
        ("operating/configuration-is-listed-and-deleted",),
    ),
    Mutant(
        "permissions-read-alike",
        "reads every permission as the same",
        ("operating/api-keys",),
    ),
    Mutant(
        "nack-many-without-the-error",
        "does not say why it gives many messages back",
        ("batch/nack-many",),
    ),
    Mutant(
        "ensure-compares-nothing",
        "takes any queue of that name for the one that was asked for",
        ("around/ensure-changes-nothing",),
    ),
    Mutant(
        "ensure-is-create",
        "fails where the queue is there as it should be",
        ("around/ensure-creates-a-queue",),
    ),
    Mutant(
        "extend-many-by-the-queues-time",
        "extends many leases by another time than it was told",
        ("around/extend-many",),
    ),
    Mutant(
        "ping-asks-nobody",
        "says that a broker is there without asking it",
        ("around/ping-of-an-absent-broker",),
    ),
    Mutant(
        "ping-needs-permission",
        "asks with a call that needs an API key",
        ("around/ping",),
    ),
    Mutant(
        "errors-without-their-queue",
        "does not say which queue an error is about",
        (
            "errors/fields-of-a-call",
            "errors/fields-of-an-item",
            "errors/fields-of-a-request-that-failed",
        ),
    ),
    Mutant(
        "errors-without-their-message",
        "does not say which message an error is about",
        ("errors/fields-of-an-item",),
    ),
    Mutant(
        "every-error-has-a-status",
        "makes a status up for what the client refused by itself",
        ("errors/fields-of-an-error-of-the-client",),
    ),
    Mutant(
        "first-message-of-each-reader-is-anothers",
        "hands a message out to two readers of one consumer",
        ("streaming/consumer-shared-by-readers",),
    ),
    Mutant(
        "text-made-to-fit",
        "replaces what UTF-8 cannot express",
        (
            "headers/ill-formed-text-is-refused[header_key]",
            "headers/ill-formed-text-is-refused[header_value]",
            "headers/ill-formed-text-is-refused[fairness_key]",
            "headers/ill-formed-text-is-refused[idempotency_key]",
        ),
    ),
    Mutant(
        "ipv4-everywhere",
        "takes every loopback for IPv4's",
        ("connection/ipv6-address",),
    ),
    Mutant(
        "requests-of-any-size",
        "does not split what is too large for one request",
        (
            "batch/a-message-beyond-the-bound-of-a-request",
            "batch/split-by-bytes",
            "coalescing/shared-requests-are-bounded-in-bytes",
        ),
    ),
)

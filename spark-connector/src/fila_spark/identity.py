# SPDX-License-Identifier: AGPL-3.0-only
"""Idempotency keys for rows that bring none: what makes a write safe when Spark runs it twice.

A retried or speculative attempt sees the same rows of a partition, perhaps in another order. So a
key is made of the run, the partition, everything the message consists of, and which occurrence of
that content it is: equal rows are interchangeable, and two attempts make the same set of keys
whatever the order.
"""

from hashlib import blake2b

import fila

# Of 16 bytes; enough for any number of messages within a queue's idempotency window.
_KEY_BYTES = 16


class Identity:
    """Makes the keys of one attempt at one partition."""

    def __init__(self, run: str, partition: int) -> None:
        self._seed = blake2b(f"{run}\0{partition}".encode(), digest_size=_KEY_BYTES)
        # A set for the many that occur once and a count for the few that come again: 70 bytes a
        # row. Eight bytes of the hash are enough to recognise a row of the same partition.
        self._seen: set[int] = set()
        self._again: dict[int, int] = {}

    def key(self, message: fila.EnqueueMessage) -> str:
        digest = self._seed.copy()
        headers = sorted(message.headers.items()) if message.headers else None
        digest.update(
            repr(
                (
                    message.queue,
                    headers,
                    message.fairness_key,
                    message.weight,
                    message.throttle_keys,
                    message.deliver_at,
                )
            ).encode("utf-8", "surrogatepass")
        )
        digest.update(message.payload)
        name = digest.hexdigest()
        content = hash(name)
        if content not in self._seen:
            self._seen.add(content)
            return name
        occurrence = self._again.get(content, 0) + 1
        self._again[content] = occurrence
        return f"{name}-{occurrence}"

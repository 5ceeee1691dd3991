# SPDX-License-Identifier: AGPL-3.0-only
"""What older formats of the store need before this core can read them.

A step yields batches of writes. Each may be written on its own; a step that was cut short is run
again from its start: what it has changed already it leaves alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from fila_server.core.wire import records
from fila_server.core.wire.records_pb2 import Lease, Retry, StoredBucket, StoredQueue
from fila_server.limits import HOUR_MS, MAX_RETRY_DELAY_MS
from fila_server.storage.api import Column, Reader, Write

_END = b"\xff" * 16
_BATCH = 1000
# Format 1 stored a bucket as two numbers. A message's first byte is the tag of one of its times,
# which as the first byte of a number would be a time before 2010.
_BUCKET_BYTES = 16
_TAGS = (0x09, 0x11)


def from_1(read: Reader) -> Iterator[list[Write]]:
    """Buckets become messages; a dead letter's place becomes its number."""
    writes: list[Write] = []
    for write in (*_buckets(read), *_letters(read)):
        writes.append(write)
        if len(writes) == _BATCH:
            yield writes
            writes = []
    if writes:
        yield writes


def _buckets(read: Reader) -> Iterator[Write]:
    for key, value in read.scan(Column.STATE, records.BUCKET, b"c"):
        if len(value) != _BUCKET_BYTES or value[0] in _TAGS:
            continue
        stored = StoredBucket(
            full_at_ns=records.from_u64(value[:8]), paused_until_ns=records.from_u64(value[8:])
        )
        if stored.paused_until_ns:
            stored.pause_ms = HOUR_MS  # how long it was meant to be was not stored
        yield Column.STATE, key, stored.SerializeToString()


def _letters(read: Reader) -> Iterator[Write]:
    dead = {
        stored.number
        for _, value in read.scan(Column.QUEUES, b"", _END)
        if (stored := StoredQueue.FromString(value)).dead_letter_of
    }
    named = _named_by_leases(read)
    for key, value in read.scan(Column.RETRIES, b"", _END):
        retry = Retry.FromString(value)
        changed = False
        number = records.key_number(key)
        # A place that is later than a lease voids that lease: where there is one it must stay.
        if int.from_bytes(key[:4], "big") in dead and retry.order != number and key not in named:
            retry.order = number
            changed = True
        if retry.deliver_at_ns and not retry.delay_ms:
            retry.delay_ms = MAX_RETRY_DELAY_MS  # nor was this
            changed = True
        if changed:
            yield Column.RETRIES, key, retry.SerializeToString()


def _named_by_leases(read: Reader) -> set[bytes]:
    """Return the keys of the messages that any lease names, be it void."""
    return {
        key[:4] + records.u64(number)
        for key, value in read.scan(Column.LEASES, b"", _END)
        for number in Lease.FromString(value).messages
    }

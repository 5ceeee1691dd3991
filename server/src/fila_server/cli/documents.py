# SPDX-License-Identifier: AGPL-3.0-only
"""What programs see with --json: one name per thing, the same in every answer.

Names are the contract's, but where the contract says `key`, `id` or `name` because its message says
whose, a document says `fairness_key`, `throttle_key`, `message_id`, `queue`. Imports no renderer.
"""

from typing import TYPE_CHECKING, Any

from fila_server.cli.render import plain

if TYPE_CHECKING:
    from fila import (
        BrokerStatus,
        ConsumeMessage,
        Message,
        PeekedMessage,
        QueueInfo,
        QueueStats,
        ThrottleKeyStats,
    )


def message(found: "Message") -> dict[str, Any]:
    """A message: every field but its lease token, the payload also as text."""
    fields = _renamed(plain(found), id="message_id")
    fields.pop("lease_token", None)
    try:
        fields["payload_text"] = found.payload.decode()
    except UnicodeDecodeError:
        fields["payload_text"] = None
    return fields


def leased(found: "ConsumeMessage") -> dict[str, Any]:
    """A delivered message: the same, and the token that `fila ack` and its kin take."""
    return {**message(found), "lease_token": found.lease_token}


def peeked(found: "PeekedMessage") -> dict[str, Any]:
    """A message in its queue: the same, and where it is in its life."""
    return {**message(found.message), "state": plain(found.state), "position": found.position}


def queue(info: "QueueInfo") -> dict[str, Any]:
    """One row of the list of queues."""
    return _renamed(plain(info), name="queue")


def stats(name: str, found: "QueueStats") -> dict[str, Any]:
    """One queue's numbers and settings."""
    fields = plain(found)
    fields["per_key_stats"] = [_renamed(it, key="fairness_key") for it in fields["per_key_stats"]]
    fields["per_throttle_stats"] = [throttle(row) for row in found.per_throttle_stats]
    return {"queue": name, **fields}


def throttle(row: "ThrottleKeyStats") -> dict[str, Any]:
    """A throttle key: every field, and where its limits come from."""
    if row.unset:
        source = "unset"
    else:
        source = "pattern" if row.pattern else "exact"
    return {**_renamed(plain(row), key="throttle_key"), "source": source}


def status(found: "BrokerStatus") -> dict[str, Any]:
    """How a broker is doing; its counts under names that no list has elsewhere."""
    return _renamed(plain(found), queues="queue_count", consumers="active_consumers")


def _renamed(fields: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in fields.items()}

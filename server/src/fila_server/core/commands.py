# SPDX-License-Identifier: AGPL-3.0-only
"""What can be asked of the broker. `ticket` belongs to the asker and comes back with the answer.

Commands carry requests of the contract as they came off the wire: plain data, checked by the
handlers. Messages to enqueue are taken apart first; see intake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fila.v1 import admin_pb2, service_pb2
from fila_server.core.access import Minted
from fila_server.core.consumer import Consumer
from fila_server.core.intake import Draft
from fila_server.core.message import Grant

Ticket = Any


@dataclass(slots=True)
class Enqueue:
    """Answered, durably, with a list: a message id, a Duplicate, or a FilaError per item."""

    ticket: Ticket
    items: Sequence[Draft]


class Duplicate(str):
    """The id of the message that an earlier enqueue with the same idempotency key made."""

    __slots__ = ()


@dataclass(slots=True)
class Ack:
    """Answered with a list: None or a FilaError per item."""

    ticket: Ticket
    items: Sequence[service_pb2.AckRequest]


@dataclass(slots=True)
class Nack:
    """Answered with None or a FilaError per item; durably when a message was dead-lettered."""

    ticket: Ticket
    items: Sequence[service_pb2.NackRequest]


@dataclass(slots=True)
class Extend:
    """Answered with the lease's new wall deadline in nanoseconds, or a FilaError, per item."""

    ticket: Ticket
    items: Sequence[service_pb2.LeaseExtension]


@dataclass(slots=True)
class OpenConsumer:
    """Answered with a Consumer; frames for it follow until it is closed."""

    ticket: Ticket
    queue: str
    max_in_flight: int
    max_batch: int
    visibility_ms: int
    is_once: bool
    sink: object
    key_id: str = ""  # the API key that asks; empty for none, or the one of the configuration


@dataclass(slots=True)
class FrameTaken:
    """A frame left for the wire: there is room for another one. Not answered."""

    consumer: Consumer


@dataclass(slots=True)
class CloseConsumer:
    """The consumer is gone; the grants in `unsent` never reached it. Not answered."""

    consumer: Consumer
    unsent: Sequence[Grant]


@dataclass(slots=True)
class Admin:
    """Any request of FilaAdmin; answered, durably where it changes something, with its response.

    `progress` is for handlers that spread long work over several turns.
    """

    ticket: Ticket
    request: (
        admin_pb2.CreateQueueRequest
        | admin_pb2.UpdateQueueRequest
        | admin_pb2.DeleteQueueRequest
        | admin_pb2.ListQueuesRequest
        | admin_pb2.GetStatsRequest
        | admin_pb2.RedriveRequest
        | admin_pb2.PeekRequest
        | admin_pb2.PurgeRequest
        | admin_pb2.PauseRequest
        | admin_pb2.ResumeRequest
        | admin_pb2.ExplainRequest
        | admin_pb2.CancelMessageRequest
        | admin_pb2.SetConfigRequest
        | admin_pb2.GetConfigRequest
        | admin_pb2.DeleteConfigRequest
        | admin_pb2.ListConfigRequest
    )
    progress: Any = None


@dataclass(slots=True)
class Access:
    """A request of FilaAdmin about API keys; answered, durably where it changes something.

    `caller_id` names the key that asks, and is empty for the one of the configuration. A key that
    is to be created comes with what it is made of.
    """

    ticket: Ticket
    request: (
        admin_pb2.CreateApiKeyRequest
        | admin_pb2.RevokeApiKeyRequest
        | admin_pb2.ListApiKeysRequest
        | admin_pb2.SetAclRequest
        | admin_pb2.GetAclRequest
    )
    caller_id: str
    minted: Minted | None = None


Command = Enqueue | Ack | Nack | Extend | OpenConsumer | FrameTaken | CloseConsumer | Admin | Access

# SPDX-License-Identifier: AGPL-3.0-only
"""What can be asked of the broker. `ticket` belongs to the asker and comes back with the answer.

Everything here is a plain value: consumers and grants go by their numbers. Commands carry requests
of the contract as they came off the wire, checked by the handlers. Messages to enqueue are taken
apart first; see wire/intake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fila.v1 import admin_pb2, service_pb2
from fila_server.core.access import Minted
from fila_server.core.wire.cuts import DraftBatch
from fila_server.core.wire.intake import Draft
from fila_server.errors import FilaError

# Chosen by the asker, who never uses one twice.
Ticket = int


@dataclass(slots=True)
class Enqueue:
    """Answered, durably, with a list: a message id, a Duplicate, or a FilaError per item."""

    ticket: Ticket
    items: Sequence[Draft] | DraftBatch
    denied: Mapping[str, FilaError] | None = None  # by queue: what the caller may not touch


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
class SettleGrants:
    """Answered with a Settled or a FilaError per item; durably when a message was dead-lettered."""

    ticket: Ticket
    items: Sequence[service_pb2.GrantSettlement]


@dataclass(slots=True)
class OpenConsumer:
    """Answered with None; frames for the consumer follow until it is closed.

    Its number is chosen by the asker, who never uses one twice.
    """

    ticket: Ticket
    consumer: int
    queue: str
    max_in_flight: int
    max_batch: int
    visibility_ms: int
    is_once: bool
    key_id: str = ""  # the API key that asks; empty for none, or the one of the configuration


@dataclass(slots=True)
class FrameTaken:
    """A frame left for the wire: there is room for another one. Not answered."""

    consumer: int


@dataclass(slots=True)
class CloseConsumer:
    """The consumer is gone; the grants in `unsent` never reached it. Not answered.

    A consumer that is closed already may be closed again, to give back what was under way to it.
    """

    consumer: int
    unsent: Sequence[int]


@dataclass(slots=True)
class Admin:
    """Any request of FilaAdmin; answered, durably where it changes something, with its response."""

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
        | admin_pb2.ListThrottlesRequest
    )


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


Command = (
    Enqueue
    | Ack
    | Nack
    | Extend
    | SettleGrants
    | OpenConsumer
    | FrameTaken
    | CloseConsumer
    | Admin
    | Access
)

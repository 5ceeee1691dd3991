# SPDX-License-Identifier: AGPL-3.0-only
"""From protobuf objects to plain values: times, members of enums, dataclasses."""

from dataclasses import fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


def moment(owner: Any, field: str) -> datetime | None:
    """A timestamp field as an aware datetime; None where it is not set."""
    return as_datetime(getattr(owner, field)) if owner.HasField(field) else None


def as_datetime(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=UTC)


def member(kind: type[E], enum: Any, number: int) -> E | None:
    """A member of an enum; None for "unspecified" and for what a newer broker may send."""
    try:
        return kind(enum.Name(number).removeprefix(_prefix(enum)).lower())
    except ValueError:
        return None


def _prefix(enum: Any) -> str:
    return str(enum.Name(0)).removesuffix("UNSPECIFIED")


def nothing(_: Any) -> None:
    """Reads an answer that holds nothing."""


def plain(kind: type[T], raw: Any, /, **others: object) -> T:
    """A dataclass from the message whose fields have the same names; `others` are given already."""
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]
    return kind(**{name: getattr(raw, name) for name in names if name not in others}, **others)


def number_of(enum: Any, item: StrEnum) -> Any:
    """The number that the contract gives to a member."""
    return enum.Value(_prefix(enum) + item.name)

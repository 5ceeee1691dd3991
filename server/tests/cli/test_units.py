# SPDX-License-Identifier: AGPL-3.0-only
"""The small pieces: words, values, error texts and JSON, without a process or a broker."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

import click
import pytest

import fila
from fila import errors as sdk_errors
from fila_server.cli import failures, render
from fila_server.cli.session import Session
from fila_server.cli.values import DURATION, PAIR
from fila_server.cli.words import counted, duration, one_line, preview


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (1_250, "1.2s"),
        (59_999, "60s"),
        (60_000, "1m"),
        (61_000, "1m 1s"),
        (3_600_000, "1h"),
        (3_900_000, "1h 5m"),
        (90_061_000, "1d 1h"),
    ],
)
def test_durations_are_short(ms: float, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("1500", 1_500), ("20ms", 20), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000)],
)
def test_typed_durations(text: str, ms: int) -> None:
    assert DURATION.convert(text, None, None) == ms


@pytest.mark.parametrize("text", ["", "s", "-1", "1.5s", "1 s", "5 minutes", "\u0661"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DURATION.convert(text, None, None)


def test_pairs() -> None:
    assert PAIR.convert("a=b=c", None, None) == ("a", "b=c")
    assert PAIR.convert("a=", None, None) == ("a", "")
    for text in ("a", "=b", ""):
        with pytest.raises(click.BadParameter):
            PAIR.convert(text, None, None)


def test_words() -> None:
    assert counted(1, "message") == "1 message"
    assert counted(2_000, "message") == "2,000 messages"
    assert one_line("a\nb\x1b[0m\x9b1m") == r"a\nb\x1b[0m\x9b1m"
    assert preview(b"abcdef", 4) == "abc…"
    assert preview(b"\xff\xfe", 10) == "<2 bytes, not text>"


class Colour(Enum):
    DARK_RED = 1


@dataclass
class Thing:
    at: datetime
    raw: bytes
    colour: Colour
    parts: tuple[int, ...]


def test_plain_values() -> None:
    thing = Thing(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), b"\x00\xff", Colour.DARK_RED, (1, 2))
    assert render.plain({"thing": thing, "none": None}) == {
        "thing": {
            "at": "2026-01-02T03:04:05Z",
            "raw": "AP8=",
            "colour": "dark_red",
            "parts": [1, 2],
        },
        "none": None,
    }


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in sdk_errors.REASONS.values()}, key=str))
def test_every_error_of_the_sdk_is_one_line(kind: type[fila.FilaError]) -> None:
    session = Session(api_key="sup3rs3cret")
    for error in (kind(), kind('queue "q"\nis odd', queue="q", message_id="m")):
        text = failures.describe(error, session)
        assert text and "\n" not in text and "sup3rs3cret" not in text
        assert text[0].islower() or text[0] == '"'


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            sdk_errors.QueueNotFoundError("no", queue="a b"),
            'queue "a b" does not exist; list queues with: fila queue list',
        ),
        (
            sdk_errors.QueueNotFoundError("no", queue="a.dlq"),
            'queue "a.dlq" does not exist; list queues with: fila queue list',
        ),
        (
            sdk_errors.DeadlineExceededError(),
            "no answer from 127.0.0.1:5555 within 5 s, the outcome is unknown; "
            "check first, then try again with a longer --timeout",
        ),
        (
            sdk_errors.UnauthenticatedError(),
            "the broker at 127.0.0.1:5555 wants an API key; set FILA_API_KEY or pass --api-key",
        ),
    ],
)
def test_error_texts(error: fila.FilaError, text: str) -> None:
    assert failures.describe(error, Session()) == text


def test_a_remote_broker_is_not_started_from_here() -> None:
    text = failures.describe(sdk_errors.UnavailableError(), Session(addr="broker.example:5555"))
    assert text.startswith("no broker answers at broker.example:5555; check --addr")

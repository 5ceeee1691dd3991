# SPDX-License-Identifier: AGPL-3.0-only
"""`fila throttle ...`: rate and concurrency limits by throttle key.

A limit is a runtime setting like any other, under a name that the scheduler knows:

    throttle:<key>:rate    throttle:<key>:burst    concurrency:<key>:limit
    throttle.<key>         "rate,burst", the same bucket in one entry
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from fila_server.cli import failures, render
from fila_server.cli.command import BrokerCommand, CommandGroup
from fila_server.cli.render import Column
from fila_server.cli.session import Session, pass_session
from fila_server.cli.values import Finite
from fila_server.cli.words import quoted

if TYPE_CHECKING:
    from fila import Client

_POSITIVE = Finite(min=0, min_open=True, max=1e9)


@dataclass(frozen=True, slots=True)
class Limit:
    """What is set for one throttle key; text where a setting is not a number."""

    key: str
    rate: float | str | None = None
    burst: float | str | None = None
    concurrency: float | str | None = None


@click.group(
    cls=CommandGroup,
    example="fila throttle set stripe --rate 100 --burst 20\nfila throttle list",
)
def throttle() -> None:
    """Limit rate and concurrency by throttle key."""


@throttle.command(
    "set", cls=BrokerCommand, example="fila throttle set stripe --rate 100 --burst 20"
)
@click.argument("key")
@click.option("--rate", type=_POSITIVE, metavar="R", help="Tokens added per second.")
@click.option("--burst", type=_POSITIVE, metavar="B", help="The most tokens that pile up.")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help=("The most messages leased at a time."),
)
@pass_session
def set_(
    session: Session, key: str, rate: float | None, burst: float | None, concurrency: int | None
) -> None:
    """Set limits of a throttle key, in force at once.

    Limits that are not named stay as they are.
    """
    entries = {
        f"throttle:{key}:burst": burst,
        f"throttle:{key}:rate": rate,
        f"concurrency:{key}:limit": concurrency,
    }
    named = {name: _written(value) for name, value in entries.items() if value is not None}
    if not named:
        raise click.UsageError(failures.NOTHING_TO_THROTTLE)
    with session.client() as client:
        for name, value in named.items():
            client.set_config(name, value)
        limit = _limits(client).get(key, Limit(key))
    if session.json:
        render.print_document(limit)
    else:
        render.say(f"Throttled {quoted(key)}: {_sentence(limit)}")


@throttle.command("list", cls=BrokerCommand, example="fila throttle list")
@pass_session
def list_(session: Session) -> None:
    """List every throttle key with its limits."""
    with session.client() as client:
        limits = _limits(client)
    rows = [limits[key] for key in sorted(limits)]
    if session.json:
        render.print_document({"throttles": rows})
    elif not rows:
        render.say("No throttles yet. Set one with: fila throttle set KEY --rate 10")
    else:
        columns = [
            Column("THROTTLE KEY"),
            Column("RATE/S", number=True),
            Column("BURST", number=True),
            Column("CONCURRENCY", number=True),
        ]
        cells = [
            (row.key, row.rate or "-", row.burst or "-", row.concurrency or "-") for row in rows
        ]
        render.show(render.table(columns, cells))


@throttle.command(cls=BrokerCommand, example="fila throttle delete stripe")
@click.argument("key")
@pass_session
def delete(session: Session, key: str) -> None:
    """Remove every limit of a throttle key."""
    with session.client() as client:
        found = [name for name in _entries(client) if _parse(name)[0] == key]
        for name in found:
            client.delete_config(name)
    if not found:
        raise click.ClickException(failures.no_throttle(key))
    if session.json:
        render.print_document({"key": key, "deleted": sorted(found)})
    else:
        render.say(f"Removed the limits of {quoted(key)}")


def _limits(client: "Client") -> dict[str, Limit]:
    found: dict[str, dict[str, float | str]] = {}
    for name, value in _entries(client).items():
        key, kind = _parse(name)
        limit = found.setdefault(key, {})
        if kind == "bucket":
            rate, comma, burst = value.partition(",")
            limit.setdefault("rate", _value(rate))
            if comma:
                limit.setdefault("burst", _value(burst))
        else:
            limit[kind] = _value(value)
    return {key: Limit(key, **limit) for key, limit in found.items()}


def _value(text: str) -> float | str:
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _entries(client: "Client") -> dict[str, str]:
    """The settings that limit something, by name."""
    entries: dict[str, str] = {}
    for prefix in ("throttle:", "throttle.", "concurrency:"):
        entries.update(client.list_config(prefix))
    return {name: value for name, value in entries.items() if _parse(name)[1]}


def _parse(name: str) -> tuple[str, str]:
    """The throttle key and what the setting says of it; the latter empty when it limits nothing."""
    if name.startswith("throttle."):
        return name.removeprefix("throttle."), "bucket"
    family, _, rest = name.partition(":")
    key, _, field = rest.rpartition(":")
    return key, _KINDS.get((family, field), "") if key else ""


_KINDS = {
    ("throttle", "rate"): "rate",
    ("throttle", "burst"): "burst",
    ("concurrency", "limit"): "concurrency",
}


def _written(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _sentence(limit: Limit) -> str:
    parts = []
    if limit.rate:
        parts.append(f"{limit.rate}/s")
    if limit.burst:
        parts.append(f"burst {limit.burst}")
    if limit.concurrency:
        parts.append(f"{limit.concurrency} at a time")
    return ", ".join(parts)

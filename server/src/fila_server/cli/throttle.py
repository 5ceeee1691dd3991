# SPDX-License-Identifier: AGPL-3.0-only
"""`fila throttle ...`: rate and concurrency limits by throttle key, and stopping a key altogether.

A limit is a runtime setting like any other, under a name that the scheduler knows:

    throttle:<key>:rate    throttle:<key>:burst    concurrency:<key>:limit
    throttle.<key>         "rate,burst", the same bucket in one entry

A key that ends in a star is a pattern: each key that matches it gets a limit of its own.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from fila_server.cli import documents, failures, render
from fila_server.cli.command import BrokerCommand, CommandGroup
from fila_server.cli.session import Session, pass_session
from fila_server.cli.sheet import Column, Table
from fila_server.cli.values import DURATION, Finite, Whole
from fila_server.cli.words import duration, quoted, shell_word
from fila_server.limits import MAX_BURST, MAX_CONCURRENCY, MAX_RATE, MIN_BURST, MIN_RATE

if TYPE_CHECKING:
    from fila import Client

_RATE = Finite(min=MIN_RATE, max=MAX_RATE)
_BURST = Finite(min=MIN_BURST, max=MAX_BURST)


@dataclass(frozen=True, slots=True)
class Limit:
    """What is set for one throttle key or pattern; text where a setting is not a number."""

    throttle_key: str
    rate_per_second: float | str | None = None
    burst: float | str | None = None
    concurrency_limit: float | str | None = None


@click.group(
    cls=CommandGroup,
    example="""
    fila throttle set stripe --rate 100 --burst 20
    fila throttle pause stripe --for 10m
    fila throttle list""",
)
def throttle() -> None:
    """Limit rate and concurrency by throttle key, or stop a key."""


@throttle.command(
    "set",
    cls=BrokerCommand,
    example="""
    fila throttle set stripe --rate 100 --burst 20
    fila throttle set 'stripe:*' --rate 25 --concurrency 5""",
)
@click.argument("key", metavar="KEY|PATTERN")
@click.option("--rate", type=_RATE, metavar="R", help="Tokens added per second.")
@click.option("--burst", type=_BURST, metavar="B", help="The most tokens that pile up.")
@click.option(
    "--concurrency",
    type=Whole(1, MAX_CONCURRENCY),
    metavar="N",
    help=("The most messages leased at a time."),
)
@pass_session
def set_(
    session: Session, key: str, rate: float | None, burst: float | None, concurrency: int | None
) -> None:
    """Set limits of a throttle key, all at once and in force at once.

    Limits that are not named stay as they are. A pattern ends in a star: every key that matches
    it, now or later, gets a limit of its own. A key's own limits win over patterns, and longer
    patterns over shorter ones.
    """
    entries = {
        f"throttle:{key}:rate": rate,
        f"throttle:{key}:burst": burst,
        f"concurrency:{key}:limit": concurrency,
    }
    named = {name: _written(value) for name, value in entries.items() if value is not None}
    if not named:
        raise click.UsageError(failures.NOTHING_TO_THROTTLE)
    with session.client() as client:
        client.set_config_all(named)
        limit = _limit(client, key)
    if session.json:
        render.print_document(limit)
    else:
        each = " for each key that matches" if key.endswith("*") else ""
        render.say(f"Throttled {quoted(key)}: {_sentence(limit)}{each}")


@throttle.command(
    "list",
    cls=BrokerCommand,
    example="""
    fila throttle list
    fila throttle list stripe:
    fila throttle list --unset""",
)
@click.argument("prefix", default="", required=False)
@click.option("--unset", is_flag=True, help="Only keys in use that nobody has set a limit for.")
@pass_session
def list_(session: Session, prefix: str, unset: bool) -> None:
    """List throttle keys that have limits or are in use, and patterns.

    SOURCE says where a key's limits come from: exact for its own, else the pattern, or unset for
    a key that messages carry and nobody has set a limit for. With PREFIX, only keys that start
    with it.
    """
    with session.client() as client:
        page = client.list_throttles(prefix, unset=unset)
        patterns = [] if unset else _patterns(client, prefix)
    if session.json:
        render.print_document(
            {
                "throttles": [documents.throttle(row) for row in page.throttles],
                "total_count": page.total_count,
                "patterns": patterns,
            }
        )
        return
    from fila_server.cli import views

    if patterns:
        render.show(_pattern_table(patterns), *([""] if page.throttles else []))
    if page.throttles:
        render.show(views.throttles(page.throttles))
    elif not patterns:
        render.say(_nothing(prefix, unset))
    more = page.total_count - len(page.throttles)
    if more > 0:
        render.note(f"... and {more:,} more; name the beginning of a key to see fewer")


@throttle.command(cls=BrokerCommand, example="fila throttle delete stripe")
@click.argument("key", metavar="KEY|PATTERN")
@pass_session
def delete(session: Session, key: str) -> None:
    """Remove every limit that was set for a throttle key or a pattern."""
    with session.client() as client:
        found = sorted(_entries(client, key))
        if not found:
            raise click.ClickException(failures.no_throttle(key))
        client.set_config_all(dict.fromkeys(found, ""))
    if session.json:
        render.print_document({"throttle_key": key, "deleted": True, "config_keys": found})
    else:
        render.say(f"Removed the limits of {quoted(key)}")


@throttle.command(
    cls=BrokerCommand,
    example="""
    fila throttle pause stripe
    fila throttle pause stripe --for 10m""",
)
@click.argument("key")
@click.option(
    "--for",
    "duration_ms",
    type=DURATION,
    help="Go on by itself after this time; until it is resumed unless told.",
)
@pass_session
def pause(session: Session, key: str, duration_ms: int | None) -> None:
    """Stop deliveries with a throttle key, in all queues.

    Enqueueing goes on, messages without the key pass, and leased ones can still be settled.
    """
    if duration_ms == 0:
        raise click.UsageError(failures.BAD_PAUSE)
    with session.client() as client:
        client.pause_throttle(key, duration_ms)
    if session.json:
        render.print_document({"throttle_key": key, "paused": True, "duration_ms": duration_ms})
        return
    how_long = f"for {duration(duration_ms)}" if duration_ms else "until it is resumed"
    render.say(
        f"Paused throttle key {quoted(key)} in all queues {how_long}; "
        f"go on with: fila throttle resume {shell_word(key)}"
    )


@throttle.command(cls=BrokerCommand, example="fila throttle resume stripe")
@click.argument("key")
@pass_session
def resume(session: Session, key: str) -> None:
    """Start deliveries with a throttle key again, whoever stopped them.

    That includes a consumer that reported backpressure.
    """
    with session.client() as client:
        client.resume_throttle(key)
    if session.json:
        render.print_document({"throttle_key": key, "paused": False})
    else:
        render.say(f"Resumed throttle key {quoted(key)}")


def _limit(client: "Client", key: str) -> Limit:
    return _limits(_entries(client, key)).get(key, Limit(key))


def _patterns(client: "Client", prefix: str) -> list[Limit]:
    """The patterns under which a key that starts with the prefix may find limits."""
    limits = _limits(_entries(client))
    return [limits[key] for key in sorted(limits) if key.endswith("*") and _meets(key, prefix)]


def _meets(pattern: str, prefix: str) -> bool:
    beginning = pattern.removesuffix("*")
    return beginning.startswith(prefix) or prefix.startswith(beginning)


def _pattern_table(patterns: list[Limit]) -> Table:
    columns = [
        Column("PATTERN"),
        Column("RATE/S", number=True),
        Column("BURST", number=True),
        Column("CONCURRENCY", number=True),
    ]
    rows = [
        (
            it.throttle_key,
            it.rate_per_second or "-",
            it.burst or "-",
            it.concurrency_limit or "-",
        )
        for it in patterns
    ]
    return Table(columns, rows)


def _nothing(prefix: str, unset: bool) -> str:
    if unset:
        return "Every throttle key in use has a limit."
    if prefix:
        return f"No throttle keys start with {quoted(prefix)}. See all with: fila throttle list"
    return "No throttles yet. Set one with: fila throttle set KEY --rate 10"


def _limits(entries: dict[str, str]) -> dict[str, Limit]:
    found: dict[str, dict[str, float | str]] = {}
    for name, value in entries.items():
        key, kind = _parse(name)
        limit = found.setdefault(key, {})
        if kind == "bucket":
            rate, comma, burst = value.partition(",")
            limit.setdefault("rate_per_second", _value(rate))
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


def _entries(client: "Client", key: str | None = None) -> dict[str, str]:
    """The settings that limit something, or only those of one key, by name."""
    entries: dict[str, str] = {}
    for beginning in ("throttle:", "throttle.", "concurrency:"):
        entries.update(client.list_config(f"{beginning}{key or ''}"))
    parsed = {name: _parse(name) for name in entries}
    return {
        name: value
        for name, value in entries.items()
        if parsed[name][1] and key in (None, parsed[name][0])
    }


def _parse(name: str) -> tuple[str, str]:
    """The throttle key and what the setting says of it; the latter empty when it limits nothing."""
    if name.startswith("throttle."):
        return name.removeprefix("throttle."), "bucket"
    family, _, rest = name.partition(":")
    key, _, field = rest.rpartition(":")
    return key, _KINDS.get((family, field), "") if key else ""


_KINDS = {
    ("throttle", "rate"): "rate_per_second",
    ("throttle", "burst"): "burst",
    ("concurrency", "limit"): "concurrency_limit",
}


def _written(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _sentence(limit: Limit) -> str:
    parts = []
    if limit.rate_per_second:
        parts.append(f"{limit.rate_per_second}/s")
    if limit.burst:
        parts.append(f"burst {limit.burst}")
    if limit.concurrency_limit:
        parts.append(f"{limit.concurrency_limit} at a time")
    return ", ".join(parts)

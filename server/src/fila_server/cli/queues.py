# SPDX-License-Identifier: AGPL-3.0-only
"""`fila queue ...`: create, change, look at, empty, stop and remove queues."""

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fila_server.cli import documents, failures, render
from fila_server.cli.command import BrokerCommand, CommandGroup
from fila_server.cli.session import Session, pass_session
from fila_server.cli.values import DURATION, SCRIPT, Whole
from fila_server.cli.words import counted, quoted

if TYPE_CHECKING:
    from fila import Client

_COUNT = Whole(min=0)
_KEY = click.option("--key", metavar="K", help="Only this fairness key.")
_YES = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group(
    cls=CommandGroup,
    example="fila queue create orders --visibility-timeout 30s\nfila queue list",
)
def queue() -> None:
    """Create, change, look at, empty, stop and remove queues."""


def queue_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Adds one option per queue setting; the command gets the named ones as `settings`."""

    @functools.wraps(command)
    def with_settings(*args: Any, **values: Any) -> None:
        settings = {name: values.pop(name) for name in list(values) if name in names}
        given = {name: value for name, value in settings.items() if value is not None}
        command(*args, **values, settings=given)

    names: set[str] = set()
    result: Callable[..., None] = with_settings
    for option, name, kind, text in reversed(_SETTINGS):
        names.add(name)
        result = click.option(option, name, type=kind, metavar=_metavar(kind), help=text)(result)
    return result


_SETTINGS: tuple[tuple[str, str, Any, str], ...] = (
    ("--on-enqueue", "on_enqueue_script", SCRIPT, "Lua that defines on_enqueue(msg)."),
    (
        "--on-failure",
        "on_failure_script",
        SCRIPT,
        "Lua that defines on_failure(msg, error, attempts).",
    ),
    ("--visibility-timeout", "visibility_timeout_ms", DURATION, "How long a lease lasts."),
    (
        "--max-attempts",
        "max_attempts",
        _COUNT,
        "Failures until a message is dead-lettered; 0: no limit.",
    ),
    (
        "--retry-delay",
        "retry_delay_ms",
        DURATION,
        "Wait before the first retry; doubles each time.",
    ),
    (
        "--retry-delay-max",
        "retry_delay_max_ms",
        DURATION,
        "The longest wait that doubling reaches.",
    ),
    (
        "--default-ttl",
        "default_ttl_ms",
        DURATION,
        "Drop messages not delivered in this time; 0: never.",
    ),
    (
        "--idempotency-window",
        "idempotency_window_ms",
        DURATION,
        "How long idempotency keys are kept.",
    ),
    ("--max-messages", "max_messages", _COUNT, "Refuse enqueues beyond this depth; 0: no limit."),
    (
        "--on-hook-error",
        "on_hook_error",
        click.Choice(["default", "reject"]),
        "When on_enqueue fails: take the message under the default key, or refuse it.",
    ),
    ("--hook-timeout", "hook_timeout_ms", DURATION, "The longest a hook call may run."),
    (
        "--hook-memory",
        "hook_memory_limit_bytes",
        _COUNT,
        "The most memory a hook may hold, in bytes.",
    ),
    ("--quantum", "quantum", _COUNT, "Messages per unit of weight and turn."),
)


def _metavar(kind: click.ParamType[Any]) -> str | None:
    return "N" if kind is _COUNT else None


@queue.command(
    cls=BrokerCommand,
    example="""
    fila queue create orders --visibility-timeout 30s --max-attempts 5
    fila queue create mail --on-enqueue @fairness.lua""",
)
@click.argument("name")
@queue_settings
@pass_session
def create(session: Session, name: str, settings: dict[str, Any]) -> None:
    """Create a queue and its dead-letter queue.

    Durations are milliseconds, or 30s, 5m, 2h, 7d. Scripts are Lua source, or @FILE with it.
    """
    with session.client() as client:
        dead_letters = client.create_queue(name, **settings)
    if session.json:
        render.print_document({"queue": name, "dead_letter_queue": dead_letters})
    else:
        render.say(f"Created queue {quoted(name)} (dead letters go to {quoted(dead_letters)})")


@queue.command(cls=BrokerCommand, example="fila queue update orders --max-attempts 5")
@click.argument("name")
@queue_settings
@pass_session
def update(session: Session, name: str, settings: dict[str, Any]) -> None:
    """Change some of a queue's settings; the others stay as they are.

    0 gives a number its default back, and an empty script ("") removes a hook.
    """
    if not settings:
        raise click.UsageError(failures.NOTHING_TO_UPDATE)
    with session.client() as client:
        client.update_queue(name, **settings)
    if session.json:
        render.print_document({"queue": name, "updated": sorted(settings)})
    else:
        render.say(f"Updated queue {quoted(name)} ({', '.join(sorted(settings))})")


@queue.command(
    cls=BrokerCommand,
    example="""
    fila queue delete orders
    fila queue delete orders --yes --keep-dead-letters""",
)
@click.argument("name")
@click.option("--keep-dead-letters", is_flag=True, help="Leave its dead-letter queue in place.")
@click.option("--yes", is_flag=True, help="Do not ask, even where messages go.")
@pass_session
def delete(session: Session, name: str, keep_dead_letters: bool, yes: bool) -> None:
    """Remove a queue with its messages and its dead letters, for good.

    Asks where messages or dead letters would go with it.
    """
    with session.client() as client:
        if not yes:
            lost = _contents(_held(client, name), _dead_letters(client, name, keep_dead_letters))
            if lost:
                confirm(f"deletes queue {quoted(name)}{lost}")
        gone = client.delete_queue(name, keep_dead_letters=keep_dead_letters)
    if session.json:
        render.print_document({"queue": name, "deleted": True, **render.plain(gone)})
    else:
        render.say(f"Deleted queue {quoted(name)}{_contents(gone.messages, gone.dead_letters)}")


def _held(client: "Client", name: str) -> int:
    stats = client.stats(name)
    return stats.depth + stats.delayed + stats.in_flight


def _dead_letters(client: "Client", name: str, are_kept: bool) -> int:
    """How many dead letters would go with the queue; it may have no dead-letter queue."""
    from fila import QueueNotFoundError

    if are_kept or name.endswith(".dlq"):
        return 0
    try:
        return _held(client, f"{name}.dlq")
    except QueueNotFoundError:
        return 0


def _contents(messages: int, dead_letters: int) -> str:
    parts = [counted(messages, "message")] if messages else []
    if dead_letters:
        parts.append(counted(dead_letters, "dead letter"))
    return f" with {' and '.join(parts)}" if parts else ""


@queue.command("list", cls=BrokerCommand, example="fila queue list")
@pass_session
def list_(session: Session) -> None:
    """List all queues with what they hold."""
    with session.client() as client:
        queues = client.list_queues()
    if session.json:
        render.print_document({"queues": [documents.queue(info) for info in queues]})
    elif not queues:
        render.say("No queues yet. Create one with: fila queue create NAME")
    else:
        from fila_server.cli import views

        render.show(views.queue_list(queues))


@queue.command(cls=BrokerCommand, example="fila queue inspect orders")
@click.argument("name")
@pass_session
def inspect(session: Session, name: str) -> None:
    """Show a queue's settings, scripts and numbers."""
    with session.client() as client:
        stats = client.stats(name)
    if session.json:
        render.print_document(documents.stats(name, stats))
    else:
        from fila_server.cli import views

        render.show(*views.settings(name, stats), "", *views.stats(stats))


@queue.command(cls=BrokerCommand, example="fila queue purge orders --key acme --yes")
@click.argument("name")
@_KEY
@_YES
@pass_session
def purge(session: Session, name: str, key: str | None, yes: bool) -> None:
    """Drop all waiting and delayed messages.

    Leased messages stay with their consumers.
    """
    with session.client() as client:
        if not yes:
            stats = client.stats(name)
            held = counted(stats.depth + stats.delayed, "message")
            confirm(
                f"drops every waiting message of key {quoted(key)} in queue {quoted(name)}"
                if key
                else f"drops {held} waiting in queue {quoted(name)}"
            )
        purged = client.purge(name, fairness_key=key)
    if session.json:
        render.print_document({"queue": name, "fairness_key": key, "purged": purged})
    else:
        render.say(f"Purged {counted(purged, 'message')} from {_place(name, key)}")


@queue.command(cls=BrokerCommand, example="fila queue pause orders --key acme")
@click.argument("name")
@_KEY
@pass_session
def pause(session: Session, name: str, key: str | None) -> None:
    """Stop deliveries.

    Enqueueing goes on, and leased messages can still be settled.
    """
    with session.client() as client:
        client.pause(name, fairness_key=key)
    if session.json:
        render.print_document({"queue": name, "fairness_key": key, "paused": True})
    else:
        render.say(f"Paused {_place(name, key)}")


@queue.command(cls=BrokerCommand, example="fila queue resume orders --key acme")
@click.argument("name")
@_KEY
@pass_session
def resume(session: Session, name: str, key: str | None) -> None:
    """Start deliveries again."""
    with session.client() as client:
        client.resume(name, fairness_key=key)
    if session.json:
        render.print_document({"queue": name, "fairness_key": key, "paused": False})
    else:
        render.say(f"Resumed {_place(name, key)}")


def confirm(what: str) -> None:
    """Asks on a terminal; elsewhere demands --yes."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(failures.needs_yes(what))
    if not click.confirm(f"This {what}. Go ahead?", err=True):
        raise click.ClickException(failures.NOT_CONFIRMED)


def _place(name: str, key: str | None) -> str:
    return f"key {quoted(key)} of queue {quoted(name)}" if key else f"queue {quoted(name)}"

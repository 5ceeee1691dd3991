# SPDX-License-Identifier: AGPL-3.0-only
"""`fila auth ...`: API keys and what they may do.

A key is printed once, by the command that creates it. No other answer holds it.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from fila_server.cli import failures, render
from fila_server.cli.command import BrokerCommand, CommandGroup
from fila_server.cli.session import Session, pass_session
from fila_server.cli.sheet import Column, Table
from fila_server.cli.values import DURATION, PERMIT
from fila_server.cli.words import quoted, since, until

if TYPE_CHECKING:
    from fila import AclEntry, ApiKeyInfo

Permits = Sequence[tuple[str, str]]

_ALLOW = click.option(
    "--allow",
    "permits",
    type=PERMIT,
    multiple=True,
    help="produce, consume or admin on a queue, a prefix (orders.*) or all (*).",
)


@click.group(
    cls=CommandGroup,
    example="fila auth create billing --allow 'produce:orders.*'\nfila auth list",
)
def auth() -> None:
    """Create, list and revoke API keys, and say what they may do."""


@auth.command(
    cls=BrokerCommand,
    example="""
    fila auth create billing --allow 'produce:orders.*' --expires 30d
    fila auth create operator --superadmin""",
)
@click.argument("name")
@_ALLOW
@click.option("--superadmin", is_flag=True, help="May do everything, other keys included.")
@click.option("--expires", type=DURATION, help="How long the key works; for ever unless told.")
@pass_session
def create(
    session: Session, name: str, permits: Permits, superadmin: bool, expires: int | None
) -> None:
    """Create an API key and print it, this once.

    A key can grant only what it has, and only where it has admin as well.
    """
    if not permits and not superadmin:
        raise click.UsageError(failures.ALLOW_OR_SUPERADMIN)
    if permits and superadmin:
        raise click.UsageError(failures.SUPERADMIN_IS_ALL)
    acl = _entries(permits)
    expires_at = None if expires is None else _moment(expires)
    with session.client() as client:
        key = client.create_api_key(name, acl, expires_at=expires_at, superadmin=superadmin)
    if session.json:
        render.print_document(
            {
                "key_id": key.key_id,
                "name": name,
                "secret": key.secret,
                "expires_at": expires_at,
                "superadmin": superadmin,
                "acl": acl,
            }
        )
    else:
        render.say(f"Created API key {key.key_id} {quoted(name)}. It is not shown again:")
        render.say(key.secret)


@auth.command("list", cls=BrokerCommand, example="fila auth list")
@pass_session
def list_(session: Session) -> None:
    """List the API keys that yours manages, without their secrets."""
    with session.client() as client:
        keys = client.list_api_keys()
    if session.json:
        render.print_document({"keys": keys})
    elif keys:
        columns = [
            Column("KEY ID", keep=True),
            Column("NAME"),
            Column("CREATED"),
            Column("EXPIRES"),
            Column("MAY"),
        ]
        rows = [
            (key.key_id, key.name, f"{since(key.created_at)} ago", _expiry(key), _may(key))
            for key in keys
        ]
        render.show(Table(columns, rows))
    else:
        render.say("No API keys yet. Create one with: fila auth create NAME --allow produce:QUEUE")


@auth.command(cls=BrokerCommand, example="fila auth revoke 70a1a9dd3ac9549f7cbe")
@click.argument("key_id")
@pass_session
def revoke(session: Session, key_id: str) -> None:
    """Make an API key useless at once; its open streams end."""
    with session.client() as client:
        client.revoke_api_key(key_id)
    if session.json:
        render.print_document({"key_id": key_id, "revoked": True})
    else:
        render.say(f"Revoked API key {quoted(key_id)}")


@auth.group(
    cls=CommandGroup,
    example="fila auth acl get 70a1a9dd3ac9549f7cbe",
)
def acl() -> None:
    """See and replace what an API key may do."""


@acl.command(
    "set",
    cls=BrokerCommand,
    example="fila auth acl set 70a1a9dd3ac9549f7cbe --allow consume:orders",
)
@click.argument("key_id")
@_ALLOW
@pass_session
def set_(session: Session, key_id: str, permits: Permits) -> None:
    """Replace all that an API key may do, in force at once."""
    if not permits:
        raise click.UsageError(failures.NOTHING_TO_ALLOW)
    entries = _entries(permits)
    with session.client() as client:
        client.set_acl(key_id, entries)
    if session.json:
        render.print_document({"key_id": key_id, "superadmin": False, "acl": entries})
    else:
        render.say(f"API key {quoted(key_id)} may now {_words(entries)}")


@acl.command(cls=BrokerCommand, example="fila auth acl get 70a1a9dd3ac9549f7cbe")
@click.argument("key_id")
@pass_session
def get(session: Session, key_id: str) -> None:
    """Show what an API key may do."""
    with session.client() as client:
        found = client.get_acl(key_id)
    if session.json:
        render.print_document(
            {"key_id": key_id, "superadmin": found.superadmin, "acl": found.entries}
        )
    elif found.superadmin:
        render.say("superadmin: everything")
    elif found.entries:
        rows = [(str(entry.permission), entry.pattern) for entry in found.entries]
        columns = [Column("PERMISSION", keep=True), Column("PATTERN")]
        render.show(Table(columns, rows))
    else:
        render.say(f"API key {quoted(key_id)} may do nothing")


def _entries(permits: Permits) -> "list[AclEntry]":
    # The SDK brings gRPC, which `--help` should not wait for.
    from fila import AclEntry, Permission

    return [AclEntry(Permission(permission), pattern) for permission, pattern in permits]


def _moment(expires_ms: int) -> datetime:
    try:
        if expires_ms:
            return datetime.now(UTC) + timedelta(milliseconds=expires_ms)
    except OverflowError:
        pass
    raise click.UsageError(failures.BAD_EXPIRY)


def _expiry(key: "ApiKeyInfo") -> str:
    if key.expires_at is None:
        return "never"
    if key.expires_at <= datetime.now(UTC):
        return "expired"
    return f"in {until(key.expires_at)}"


def _may(key: "ApiKeyInfo") -> str:
    return "everything" if key.superadmin else _words(key.acl) or "nothing"


def _words(entries: "Iterable[AclEntry]") -> str:
    return " ".join(f"{entry.permission}:{entry.pattern}" for entry in entries)

# SPDX-License-Identifier: AGPL-3.0-only
"""What one run of `fila` knows: which broker, how to reach it, and how to answer.

The options of this module are accepted before and after a command's name; the last one wins. The
environment is read only at the root, so that it never overrides an option that was typed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fila_server.cli import failures
from fila_server.cli.values import Finite

if TYPE_CHECKING:
    from fila import Client, TlsOptions

DEFAULT_ADDRESS = "127.0.0.1:5555"
# The deadline of one call; the same as the SDK's, named here because `--help` shows it.
DEFAULT_TIMEOUT_S = 5.0


@dataclass
class Session:
    """The options that every command shares."""

    addr: str = DEFAULT_ADDRESS
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_server_name: str | None = None
    api_key: str | None = None
    timeout: float = DEFAULT_TIMEOUT_S
    json: bool = False
    # The words that name the command that runs.
    command: str = ""

    @property
    def uses_tls(self) -> bool:
        named = (self.tls_ca, self.tls_cert, self.tls_key, self.tls_server_name)
        return self.tls or any(named)

    @contextmanager
    def client(self) -> Iterator["Client"]:
        """A connected client, closed on the way out."""
        # The SDK brings gRPC, which takes longer to import than `--help` may take to answer.
        from fila import Client

        tls = self._tls_options()
        target = self._target()
        with Client(target, tls=tls, api_key=self._api_key(), timeout=self.timeout) as client:
            yield client

    @contextmanager
    def one_line_errors(self) -> Iterator[None]:
        """Turns what the SDK raises into one actionable line about this session's broker."""
        try:
            yield
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except OSError as error:
            raise click.ClickException(failures.system_error(error)) from error
        except Exception as error:
            # Imported here, where a command that uses the SDK has already done so.
            from fila import FilaError

            if isinstance(error, FilaError):
                raise failures.BrokerFailure(error, self) from error
            if isinstance(error, (TypeError, ValueError)):
                # The SDK refused an argument before sending it; its text names the argument.
                raise click.ClickException(failures.refused_argument(error)) from error
            raise

    def _target(self) -> str:
        host, colon, port = self.addr.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise click.UsageError(failures.bad_address(self.addr))
        return self.addr

    def _tls_options(self) -> "TlsOptions | None":
        from fila import TlsOptions

        if (self.tls_cert is None) != (self.tls_key is None):
            raise click.UsageError(failures.CERT_NEEDS_KEY)
        if not self.uses_tls:
            return None
        from pathlib import Path  # which brings URLs and addresses along

        for path in filter(None, (self.tls_ca, self.tls_cert, self.tls_key)):
            if not os.access(path, os.R_OK) or Path(path).is_dir():
                raise click.UsageError(failures.unreadable_file(path))
        return TlsOptions(
            ca=self.tls_ca,
            cert=self.tls_cert,
            key=self.tls_key,
            server_name=self.tls_server_name,
        )

    def _api_key(self) -> str | None:
        # gRPC refuses other characters in metadata, with a text that repeats the value.
        if self.api_key is not None and not all(" " < char <= "~" for char in self.api_key):
            raise click.UsageError(failures.BAD_API_KEY)
        return self.api_key


pass_session = click.make_pass_decorator(Session)


def shared_options(*, root: bool, broker: bool) -> list[click.Parameter]:
    """The shared options for one command; only the root's help lists how to connect."""
    return [
        *(_connection_options(root) if broker else ()),
        _option("--json", is_flag=True, help=("Answer in JSON, for programs.")),
    ]


def _connection_options(root: bool) -> list[click.Parameter]:
    common: dict[str, Any] = {"hidden": not root}

    def connection(name: str, help: str, **attributes: Any) -> click.Option:
        if root:
            variable = "FILA_" + name.removeprefix("--").replace("-", "_").upper()
            attributes |= {"envvar": variable, "show_envvar": True}
        return _option(name, help=help, **attributes, **common)

    return [
        connection(
            "--addr",
            f"The broker's address; {DEFAULT_ADDRESS} unless told.",
            metavar="HOST:PORT",
        ),
        connection("--tls", "Use TLS, trusting the system's roots.", is_flag=True),
        connection("--tls-ca", "Use TLS, trusting this CA (PEM).", metavar="FILE"),
        connection("--tls-cert", "Client certificate for mTLS (PEM).", metavar="FILE"),
        connection("--tls-key", "Key of that certificate (PEM).", metavar="FILE"),
        connection(
            "--tls-server-name",
            "Use TLS, expecting this name in the broker's certificate.",
            metavar="NAME",
        ),
        connection(
            "--api-key",
            "The API key; the environment keeps it out of the process list.",
            metavar="KEY",
        ),
        _option(
            "--timeout",
            metavar="S",
            **common,
            type=Finite(0, min_open=True),
            help=(f"Seconds that one call may take; {DEFAULT_TIMEOUT_S:g} unless told."),
        ),
    ]


def _option(name: str, **attributes: Any) -> click.Option:
    return click.Option([name], expose_value=False, callback=_store, **attributes)


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    session = ctx.ensure_object(Session)
    if value and param.name is not None:
        setattr(session, param.name, value)

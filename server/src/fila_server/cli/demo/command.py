# SPDX-License-Identifier: AGPL-3.0-only
"""`fila demo`: a minute of fair scheduling on a real broker, with nothing to prepare."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from fila_server.cli import render
from fila_server.cli.command import OfflineCommand
from fila_server.cli.demo.broker import own_broker
from fila_server.cli.demo.load import QUEUE, Load, tenants
from fila_server.cli.demo.score import Tenant
from fila_server.cli.session import Session, pass_session
from fila_server.cli.values import Finite, Whole

_REDRAW_S = 0.5
_LINE_S = 1.0


@click.command(cls=OfflineCommand, example="fila demo\nfila demo --seconds 20 --tenants 12")
@click.option(
    "--seconds",
    type=Finite(1, 3600),
    default=60,
    show_default=True,
    metavar="N",
    help=("How long messages flow."),
)
@click.option(
    "--tenants",
    "tenant_count",
    type=Whole(3, 30),
    default=6,
    show_default=True,
    metavar="N",
    help=("How many tenants share the queue."),
)
@pass_session
def demo(session: Session, seconds: float, tenant_count: int) -> None:
    """Watch fair scheduling for a minute, with nothing to prepare.

    Starts a broker of its own on a free port and lets tenants share one queue: "noisy" floods it,
    "premium" does too but has weight 3, the others are quiet. Ends with a summary, after Ctrl-C
    too, and removes everything.
    """
    with _cleanup_on_terminate():
        _run(session, seconds, tenants(tenant_count))


def _run(session: Session, seconds: float, who: list[Tenant]) -> None:
    quiet = session.json
    if not quiet:
        render.say(f"Starting a broker; {len(who)} tenants share one queue for {seconds:g} s ...")
    with own_broker() as address:
        own = Session(addr=address)
        with own.client() as client, own.one_line_errors():
            client.create_queue(QUEUE)
            load = Load(client, who)
            started = time.monotonic()
            is_stopped = False
            try:
                with load.running():
                    _follow(load, started, seconds, quiet)
            except KeyboardInterrupt:
                is_stopped = True
            if load.failure is not None:
                raise load.failure
    _summarize(load, started, quiet)
    if is_stopped:
        raise KeyboardInterrupt


def _summarize(load: Load, started: float, quiet: bool) -> None:
    """Says what was seen, also of a run that was stopped; nothing where nothing was."""
    from fila_server.cli.demo import view

    if not load.record.deliveries:
        return
    elapsed = load.record.deliveries[-1][1] - started
    if quiet:
        render.print_document(view.document(load.record, elapsed))
    else:
        render.show("", *view.summary(load.record, elapsed))


def _follow(load: Load, started: float, seconds: float, quiet: bool) -> None:
    """Shows the traffic until its time is over or a thread fails."""
    from fila_server.cli.demo import view

    console = render.console()
    if quiet:
        for _ in _ticks(load, started, seconds, _LINE_S):
            pass
    elif console.is_terminal:
        from rich.console import Group
        from rich.live import Live

        with Live(console=console, auto_refresh=False, transient=True) as screen:
            for now in _ticks(load, started, seconds, _REDRAW_S):
                parts = view.live(load.record, now, started + seconds - now)
                screen.update(Group(*parts), refresh=True)
    else:
        for now in _ticks(load, started, seconds, _LINE_S):
            render.say(view.line(load.record, now, now - started))


def _ticks(load: Load, started: float, seconds: float, every_s: float) -> Iterator[float]:
    end = started + seconds
    tick = started + every_s
    while load.failure is None:
        time.sleep(max(0.0, min(tick, end) - time.monotonic()))
        yield time.monotonic()
        if tick >= end:
            return
        tick += every_s


@contextmanager
def _cleanup_on_terminate() -> Iterator[None]:
    """Makes a stop and a closed terminal unwind the stack as Ctrl-C does: nothing is left."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {it: signal.signal(it, unwind) for it in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

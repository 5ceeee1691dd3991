# SPDX-License-Identifier: AGPL-3.0-only
"""A terminal that one view has to itself, and gets back as it was: `fila top` draws here.

The view is on the terminal's second screen. The key q ends it; typed keys are not echoed meanwhile.
"""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Group
from rich.live import Live

from fila_server.cli.sheet import Part

if TYPE_CHECKING:
    from rich.console import Console

_QUIT = (b"q", b"Q")
_TYPED_BYTES = 64


class Screen:
    """The second screen while it is entered; leaving it restores the first, whatever happened."""

    def __init__(self, console: "Console") -> None:
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if sys.stdin is not None and sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._live.__exit__(kind, error, traceback)
        finally:
            if self._before is not None:
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def draw(self, view: Iterable[Part]) -> None:
        self._live.update(Group(*view), refresh=True)

    def is_quit_within(self, seconds: float) -> bool:
        """Waits so long, or until q is pressed."""
        if self._before is None:
            time.sleep(seconds)
            return False
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([sys.stdin], [], [], left)[0]:
                return False
            # Past Python's buffer, which would hide from select what was typed together.
            typed = os.read(sys.stdin.fileno(), _TYPED_BYTES)
            if not typed or any(key in typed for key in _QUIT):
                return True

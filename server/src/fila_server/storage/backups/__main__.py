# SPDX-License-Identifier: AGPL-3.0-only
"""Makes a backup in a process of its own, so that its work takes nothing of the broker's thread.

The broker starts it, and reads a line of JSON for each step from its output. It gives up when its
input ends: the broker closes it, or has died. Nothing is left behind then.
"""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fila_server.errors import FilaError
from fila_server.storage.backups.generation import make_generation

# The broker and its clients go first.
_NICENESS = 10
_TELL_S = 0.1


@dataclass(slots=True)
class _Teller:
    """Tells of every phase, and some times a second how far it is."""

    phase: str = ""
    told_s: float = 0.0

    def tell(self, phase: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if phase != self.phase or done >= total or now_s > self.told_s + _TELL_S:
            self.phase, self.told_s = phase, now_s
            say(phase=phase, done_bytes=done, total_bytes=total)


def say(**facts: Any) -> None:
    try:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody is there any more. Python would try to write once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def _stop_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # which the main thread takes


def main() -> int:
    """Make the backup that the arguments ask for: DATA DIRECTORY SEQUENCE FLOOR_BYTES."""
    data, directory, sequence, floor_bytes = sys.argv[1:]

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=_stop_with_input, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which then asks
    os.nice(_NICENESS)
    try:
        made = make_generation(
            Path(data),
            Path(directory),
            sequence=int(sequence),
            floor_bytes=int(floor_bytes),
            tell=_Teller().tell,
        )
        say(
            phase="done",
            path=str(made.path),
            messages=made.messages,
            copied_bytes=made.copied_bytes,
        )
    except FilaError as error:
        say(reason=error.reason, error=error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: AGPL-3.0-only
"""A broker to be tortured: started in a folder that goes away, under limits and with libraries
between it and the system, and looked at from outside.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from server.tests.broker_process import COMMAND, BrokerProcess, free_port

MIB = 1024 * 1024


class Refused(Exception):
    """The broker did not start; the text is what it said last."""


class Victim(BrokerProcess):
    """A broker process whose memory and descriptors can be read."""

    def __init__(
        self,
        directory: Path,
        *,
        config: str = "",
        environment: Mapping[str, str] | None = None,
        descriptors: tuple[int, int] | None = None,
    ) -> None:
        """`descriptors` are the soft and the hard limit of open files that it is started with."""
        super().__init__(directory, config=config, environment=environment, port=free_port())
        self.command: Sequence[str] = COMMAND
        if descriptors is not None:
            soft, hard = descriptors
            self.command = ("prlimit", f"--nofile={soft}:{hard}", *COMMAND)

    def up(self) -> None:
        """Start it, as it is always started. Raises Refused if it does not."""
        try:
            self.start(self.command)
        except AssertionError as error:
            raise Refused(self.last_line()) from error

    def last_line(self) -> str:
        """The last line of its log."""
        lines = self.log().splitlines() or ["nothing in its log"]
        return self.told(lines[-1].removeprefix("fila-server: "))

    def told(self, text: str) -> str:
        """What the broker says, without the name of its folder, which goes away."""
        return text.replace(str(self.data), "DATA")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def resident_mib(self) -> int:
        """The memory it holds now."""
        return self._status("VmRSS") // 1024

    def peak_mib(self) -> int:
        """The most memory it ever held."""
        return self._status("VmHWM") // 1024

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        # A process that has ended and was not waited for has no memory.
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


@contextmanager
def victim(
    *,
    config: str = "",
    environment: Mapping[str, str] | None = None,
    descriptors: tuple[int, int] | None = None,
) -> Iterator[Victim]:
    """Run a broker in a folder of its own; both are gone afterwards."""
    with folder() as path:
        made = Victim(path, config=config, environment=environment, descriptors=descriptors)
        try:
            made.up()
            yield made
        finally:
            made.close()


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fila-torture-") as path:
        yield Path(path)

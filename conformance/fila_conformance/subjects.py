# SPDX-License-Identifier: AGPL-3.0-only
"""The one table of what is tested: how each SDK's driver is found, built and started.

A subject is an SDK with one way to use it, so Python is two. Commands run in the driver's folder;
`{root}`, `{driver}`, `{cache}` and `{python}` stand for the checkout, that folder, the language's
folder in the user's cache, and the interpreter that runs the suite.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fila_conformance.driver import Launch
from fila_conformance.layout import CACHE, DRIVERS, ROOT

Command = tuple[str, ...]

# What builds leave behind, should one be in the checkout.
_NOT_SOURCES = frozenset({"node_modules", "target", "dist", "build", "__pycache__", ".git"})
_BUILD_TIMEOUT_S = 1800


class BuildError(Exception):
    """A driver cannot be built; the text ends with what the build said."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of the table."""

    name: str
    # The folder under drivers/, and what --allow-missing names.
    language: str
    # Each must run and exit 0, or the toolchain is missing.
    probes: tuple[Command, ...]
    build: tuple[Command, ...]
    launch: Command
    # A change in one of these, relative to the checkout, means a new build.
    sources: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    # What the driver must declare, at least; cases apply by what it does declare. cancel, whether
    # the language can give up on a call, is known here and need not be declared.
    features: frozenset[str] = frozenset({"tracing", "mtls", "cancel"})

    @property
    def folder(self) -> Path:
        return DRIVERS / self.language

    @property
    def cache(self) -> Path:
        # Not by subject: Python's two share one build.
        return CACHE / self.language

    def filled(self, text: str) -> str:
        places = {
            "{root}": ROOT,
            "{driver}": self.folder,
            "{cache}": self.cache,
            "{python}": sys.executable,
        }
        for placeholder, value in places.items():
            text = text.replace(placeholder, str(value))
        return text

    def command(self, command: Command) -> list[str]:
        return [self.filled(part) for part in command]

    def environment(self) -> dict[str, str]:
        return {name: self.filled(value) for name, value in self.env.items()}

    def launched(self) -> Launch:
        """How to start its driver once it is built."""
        command = tuple(self.command(self.launch))
        return Launch(self.name, command, self.environment(), self.folder, self.features)


_PYTHON_BUILD: tuple[Command, ...] = (
    ("{python}", "-m", "venv", "--clear", "{cache}/venv"),
    (
        *("{cache}/venv/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"),
        *("-c", "{root}/tools/constraints.txt", "{root}/sdks/python", "opentelemetry-sdk"),
    ),
)
_PYTHON_SOURCES = ("sdks/python/src", "sdks/python/pyproject.toml")
_NPM: Command = ("npm", "--no-audit", "--no-fund", "--silent")


SUBJECTS: tuple[Subject, ...] = (
    Subject(
        name="python",
        language="python",
        probes=(("{python}", "--version"),),
        build=_PYTHON_BUILD,
        launch=("{cache}/venv/bin/python", "driver.py", "sync"),
        sources=_PYTHON_SOURCES,
        features=frozenset({"tracing", "mtls"}),
    ),
    Subject(
        name="python-async",
        language="python",
        probes=(("{python}", "--version"),),
        build=_PYTHON_BUILD,
        launch=("{cache}/venv/bin/python", "driver.py", "async"),
        sources=_PYTHON_SOURCES,
    ),
    Subject(
        name="go",
        language="go",
        probes=(("go", "version"),),
        build=(("go", "build", "-o", "{cache}/driver", "."),),
        launch=("{cache}/driver",),
        sources=("sdks/go", "conformance/drivers/go"),
    ),
    Subject(
        name="js",
        language="js",
        probes=(("node", "--version"), ("npm", "--version")),
        build=(
            # npm writes beside its manifest, and the driver finds the SDK by a relative path.
            ("rm", "-rf", "{cache}/tree"),
            ("mkdir", "-p", "{cache}/tree"),
            (
                *("sh", "-c"),
                "tar -C {root} --exclude=node_modules --exclude=dist -cf - sdks/js "
                "conformance/drivers/js | tar -C {cache}/tree -xf -",
            ),
            (*_NPM, "--prefix", "{cache}/tree/sdks/js", "ci"),
            ("npm", "--prefix", "{cache}/tree/sdks/js", "run", "--silent", "build"),
            (*_NPM, "--prefix", "{cache}/tree/conformance/drivers/js", "ci"),
        ),
        launch=("node", "{cache}/tree/conformance/drivers/js/driver.js"),
        sources=("sdks/js", "conformance/drivers/js"),
    ),
    Subject(
        name="ruby",
        language="ruby",
        probes=(("ruby", "--version"), ("ruby", "-e", "require 'grpc'")),
        build=(),
        launch=("ruby", "-I", "{root}/sdks/ruby/lib", "driver.rb"),
        sources=("sdks/ruby", "conformance/drivers/ruby"),
    ),
    Subject(
        name="java",
        language="java",
        probes=(("java", "-version"), ("javac", "-version"), ("mvn", "--version")),
        build=(
            (
                *("mvn", "-q", "-B", "-f", "{root}/sdks/java/pom.xml", "install", "-DskipTests"),
                "-DbuildDirectory={cache}/sdk",
            ),
            ("mvn", "-q", "-B", "package", "-DbuildDirectory={cache}/driver"),
        ),
        launch=("java", "-jar", "{cache}/driver/fila-driver.jar"),
        sources=("sdks/java", "conformance/drivers/java"),
    ),
    Subject(
        name="rust",
        language="rust",
        probes=(("cargo", "--version"),),
        build=(("cargo", "build", "--release", "--quiet"),),
        launch=("{cache}/target/release/fila-driver",),
        sources=("sdks/rust", "conformance/drivers/rust"),
        env={"CARGO_TARGET_DIR": "{cache}/target"},
    ),
)


def missing(subject: Subject) -> str | None:
    """What the subject needs and this machine does not have; None when all is there."""
    if not subject.folder.is_dir():
        return f"there is no driver in {subject.folder.relative_to(ROOT)}"
    for probe in subject.probes:
        command = subject.command(probe)
        if shutil.which(command[0]) is None:
            return f"{command[0]} is not installed"
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        if done.returncode != 0:
            return f"`{' '.join(command)}` fails"
    return None


def build(subject: Subject) -> bool:
    """Builds the driver unless it is built from the same sources; says whether it did.

    Raises BuildError.
    """
    stamp = subject.cache / "stamp"
    wanted = _digest(subject)
    if stamp.is_file() and stamp.read_text() == wanted:
        return False
    stamp.unlink(missing_ok=True)
    subject.cache.mkdir(parents=True, exist_ok=True)
    for command in map(subject.command, subject.build):
        done = subprocess.run(
            command,
            cwd=subject.folder,
            env={**os.environ, **subject.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            said = done.stdout.decode("utf-8", "replace").strip().splitlines()[-20:]
            raise BuildError("\n".join([f"`{' '.join(command)}` failed:", *said]))
    stamp.write_text(wanted)
    return True


def _digest(subject: Subject) -> str:
    digest = hashlib.sha256()
    # The checkout's own path too: what is built may refer to it.
    digest.update(repr((str(ROOT), sys.version, subject.build, subject.env)).encode())
    for path in _sources(subject):
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _sources(subject: Subject) -> Iterator[Path]:
    for source in subject.sources:
        top = ROOT / source
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and not _NOT_SOURCES & set(path.relative_to(ROOT).parts):
                yield path

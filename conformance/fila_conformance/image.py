# SPDX-License-Identifier: AGPL-3.0-only
"""The broker's image, from server/Dockerfile and wheels that are made outside of it.

Wheels make the build quick, repeatable and independent of a network inside the engine. The base is
the Dockerfile's own where the engine has it or can pull it; where no registry can be reached, it is
made from the machine's own package mirror with debootstrap and kept in the cache.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import docker
import docker.errors

from fila_conformance.layout import CACHE, ROOT

_CONTEXT = ("server", "sdks/python")
_NOT_COPIED = shutil.ignore_patterns(
    "tests", "__pycache__", "*.egg-info", "build", "dist", "target"
)
_PYTHON = "3.11"
_SUITE = "bookworm"  # Debian's release with that Python
_PACKAGES = "python3,python3-venv,ca-certificates"
_OWN_BASE = "fila-conformance-base:" + _SUITE
_IMAGE = "fila-server:conformance-"
_BASE_DEFAULT = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
# Documentation and caches; Python needs none of it.
_NOT_IN_BASE = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man")

Say = Callable[[str], None]


class ImageError(Exception):
    """The image cannot be made."""


def ensure(engine: docker.DockerClient, say: Say) -> str:
    """The name of an image of the broker as it is in this checkout. Raises ImageError."""
    name = _IMAGE + _digest()
    try:
        engine.images.get(name)
        return name
    except docker.errors.ImageNotFound:
        pass
    base = _base(engine, say)
    say("building the broker's image")
    with tempfile.TemporaryDirectory(prefix="fila-image-") as folder:
        context = Path(folder)
        for part in _CONTEXT:
            shutil.copytree(ROOT / part, context / part, ignore=_NOT_COPIED)
        _make_wheels(context / "wheels")
        try:
            engine.images.build(
                path=folder,
                dockerfile="server/Dockerfile",
                tag=name,
                buildargs={"BASE": base},
                rm=True,
                forcerm=True,
            )
        except (docker.errors.BuildError, docker.errors.APIError) as error:
            raise ImageError(f"server/Dockerfile does not build: {error}") from error
    _remove_older(engine, name)
    return name


def _remove_older(engine: docker.DockerClient, newest: str) -> None:
    tags = [tag for found in engine.images.list() for tag in found.tags]
    for tag in tags:
        if tag.startswith(_IMAGE) and tag != newest:
            try:
                engine.images.remove(tag)
            except docker.errors.APIError:
                pass  # Another run uses it.


def _digest() -> str:
    digest = hashlib.sha256()
    for part in _CONTEXT:
        for path in sorted((ROOT / part).rglob("*")):
            names = set(path.relative_to(ROOT).parts)
            if path.is_file() and not names & {"tests", "__pycache__", "target"}:
                digest.update(str(path.relative_to(ROOT)).encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


# --- Wheels ------------------------------------------------------------------------------------


def _make_wheels(folder: Path) -> None:
    """Wheels of our packages, as they are released, and of all that they need, for the Python in
    the image.
    """
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    _run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT / "sdks/python")])
    _run([sys.executable, "-m", "tools.wheels", "--out", str(folder)])
    machine = platform.machine()
    platforms = [
        part
        # The last is what our own are called that were built on this machine.
        for system in (
            "manylinux2014",
            "manylinux_2_17",
            "manylinux_2_28",
            "manylinux_2_34",
            "linux",
        )
        for part in ("--platform", f"{system}_{machine}")
    ]
    built = [str(path) for path in sorted(folder.glob("fila_*.whl"))]
    _run(
        [
            *(*pip, "download", "--only-binary", ":all:", "--python-version", _PYTHON),
            *(*platforms, "--find-links", str(folder), "--dest", str(folder), *built),
        ]
    )


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()[-5:]
        raise ImageError(f"`{' '.join(command[:4])} ...` failed: {' / '.join(said)}")


# --- The base ----------------------------------------------------------------------------------


def _base(engine: docker.DockerClient, say: Say) -> str:
    dockerfile = (ROOT / "server" / "Dockerfile").read_text(encoding="utf-8")
    found = _BASE_DEFAULT.search(dockerfile)
    if found is None:
        raise ImageError("server/Dockerfile has no line ARG BASE=...")
    for name in (found[1], _OWN_BASE):
        try:
            engine.images.get(name)
            return name
        except docker.errors.ImageNotFound:
            pass
    try:
        engine.images.pull(*found[1].split(":"))
        return found[1]
    except docker.errors.APIError as error:
        why = str(error.explanation or error)
    say(f"{found[1]} cannot be pulled, taking Debian's own Python as the base")
    tarball = _debian(why)
    with tarball.open("rb") as file:
        repository, _, tag = _OWN_BASE.partition(":")
        engine.api.import_image(src=file, repository=repository, tag=tag)
    return _OWN_BASE


def _debian(why: str) -> Path:
    """A minimal Debian with Python as a tarball, made once and kept in the cache."""
    tarball = CACHE / f"base-{_SUITE}-{platform.machine()}.tar"
    if tarball.is_file():
        return tarball
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise ImageError(
            f"no base image: {why}; making one takes root and debootstrap "
            "(apt-get install debootstrap)"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    # In the cache and not in a temporary folder, which may be mounted without devices.
    with tempfile.TemporaryDirectory(prefix="base-", dir=CACHE) as folder:
        tree = Path(folder) / "tree"
        options = ("--variant=minbase", f"--include={_PACKAGES}")
        _run(["debootstrap", *options, _SUITE, str(tree), mirror()])
        for part in _NOT_IN_BASE:
            shutil.rmtree(tree / part, ignore_errors=True)
        made = Path(folder) / "base.tar"
        _run(["tar", "-C", str(tree), "-cf", str(made), "."])
        made.rename(tarball)
    return tarball


def mirror(sources: Path = Path("/etc/apt")) -> str:
    """The first package mirror in the machine's own apt sources. Raises ImageError."""
    files = [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))]
    for path in files:
        if not path.is_file() or path.suffix not in (".list", ".sources"):
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            found = re.match(r"(?:URIs:|deb\s+(?:\[.*?\]\s+)?)\s*(https?://\S+)", line)
            if found:
                return found[1]
    raise ImageError(f"no package mirror in {sources}")

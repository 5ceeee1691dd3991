# SPDX-License-Identifier: AGPL-3.0-only
"""The broker's wheels as they are released: its core compiled, and the native edge beside it.

They are built once per source and kept in the user's cache: about two minutes of two cores, for
which a C compiler and Rust are needed. Nothing is left beside the sources.

    python -m tools.wheels              build what is missing, and print the wheels
    python -m tools.wheels --out DIR    the same, and copy them there
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fila"

_CORE = ("server/pyproject.toml", "server/src/**/*.py")
_EDGE = ("server/edge/pyproject.toml", "server/edge/Cargo.toml", "server/edge/**/*.rs")
_EDGE_TYPES = "server/edge/*.pyi"
_KEPT_S = 7 * 24 * 3600


def wheels() -> list[Path]:
    """Return the wheels, building what is not in the cache. Raises CalledProcessError."""
    return [
        _wheel("server", _CORE, {"HATCH_BUILD_HOOK_ENABLE_MYPYC": "true"}),
        _wheel("server/edge", (*_EDGE, _EDGE_TYPES), {}),
    ]


def _wheel(package: str, sources: Iterable[str], settings: dict[str, str]) -> Path:
    kept = CACHE / "wheels" / package.replace("/", "-") / _digest(sources)
    kept.parent.mkdir(parents=True, exist_ok=True)
    # Another checkout may be building the same: who comes second waits, and finds it.
    with open(kept.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _kept(kept) or _built(kept, package, settings)


def _kept(folder: Path) -> Path | None:
    return next(folder.glob("*.whl"), None)


def _built(kept: Path, package: str, settings: dict[str, str]) -> Path:
    _forget_old(kept.parent)
    folder = tempfile.mkdtemp(prefix="build-", dir=kept.parent)
    # By way of a source archive, so that what a build leaves behind is left there. Cargo's part of
    # it, too: it tells by times whether a source has changed, and those in an archive are always
    # the same.
    command = (sys.executable, "-m", "build", "-o", folder, str(ROOT / package))
    environment = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
    subprocess.run(command, env={**environment, **settings}, check=True, stdout=sys.stderr)
    Path(folder).rename(kept)
    (found,) = kept.glob("*.whl")
    return found


def _forget_old(folder: Path) -> None:
    """Remove what no build has made or begun of late."""
    for built in folder.iterdir():
        if built.is_dir() and time.time() - built.stat().st_mtime > _KEPT_S:
            shutil.rmtree(built, ignore_errors=True)


def _digest(patterns: Iterable[str]) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(_found(patterns)):
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _found(patterns: Iterable[str]) -> Iterator[Path]:
    for pattern in patterns:
        for path in ROOT.glob(pattern):
            if "target" not in path.relative_to(ROOT).parts:
                yield path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.wheels", description=__doc__)
    parser.add_argument("--out", type=Path, help="copy the wheels to this folder")
    folder: Path | None = parser.parse_args().out
    for wheel in wheels():
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            wheel = Path(shutil.copy2(wheel, folder))
        print(wheel)


if __name__ == "__main__":
    main()

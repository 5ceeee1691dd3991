# SPDX-License-Identifier: AGPL-3.0-only
"""From .proto files to committed Python, and the guard of the contract.

    python -m tools.proto            write the generated code into the tree
    python -m tools.proto --check    fail if it is stale, badly styled or breaks existing clients

The check compares the contract with the last release, with the branch that this one left, and with
the last commit. It needs no history beyond what the clone has: what is missing is named, not
guessed. Before the first release there is nobody to break, so a break is told and not refused.
"""

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONTRACT = "proto"
_RELEASE = re.compile(r"^## \[?\d", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Package:
    """Sources that share an import root, and where their Python goes."""

    sources: str
    pattern: str
    out: str
    has_services: bool


PACKAGES = (
    Package(CONTRACT, "fila/v1/*.proto", "sdks/python/src", has_services=True),
    Package("server/src", "fila_server/**/*.proto", "server/src", has_services=False),
)


def generate(package: Package, out: Path) -> list[str]:
    """Write the Python of a package under `out` and return the paths written, relative to it."""
    sources = sorted((ROOT / package.sources).glob(package.pattern))
    names = [source.relative_to(ROOT / package.sources).as_posix() for source in sources]
    if not names:
        return []
    kinds = ["python", "pyi", "grpc_python"] if package.has_services else ["python", "pyi"]
    includes = dict.fromkeys((CONTRACT, package.sources))
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc"),
            *(f"--proto_path={ROOT / include}" for include in includes),
            *(f"--{kind}_out={out}" for kind in kinds),
            *names,
        ],
        check=True,
    )
    endings = ["_pb2.py", "_pb2.pyi"] + ["_pb2_grpc.py"] * package.has_services
    return [name.removesuffix(".proto") + ending for name in names for ending in endings]


def stale(package: Package) -> Iterator[str]:
    """Yield what differs between the committed code of a package and a fresh one."""
    committed = ROOT / package.out
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        names = generate(package, fresh)
        for name in names:
            if not (committed / name).is_file():
                yield f"{package.out}/{name}: missing"
            elif (committed / name).read_bytes() != (fresh / name).read_bytes():
                yield f"{package.out}/{name}: stale"
    folders = {Path(name).parent for name in names}
    for found in sorted(path for folder in folders for path in (committed / folder).glob("*_pb2*")):
        if found.relative_to(committed).as_posix() not in names:
            yield f"{found.relative_to(ROOT)}: no .proto file makes this"


def git(*arguments: str) -> str | None:
    """Return what git prints, or None where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    return done.stdout.decode().strip() if done.returncode == 0 else None


def baselines() -> dict[str, str]:
    """Return the commits whose contract must still work, each with the reason.

    Edits are compared with the commit that they are made to, a commit with its parent.
    """
    head = git("rev-parse", "--verify", "--quiet", "HEAD")
    is_edited = bool(git("status", "--porcelain", "--", CONTRACT))
    release = git("describe", "--tags", "--match", "v*", "--abbrev=0", "HEAD")
    parent = git("rev-parse", "--verify", "--quiet", "HEAD^")
    candidates = {
        "the last commit" if is_edited else "the commit before": head if is_edited else parent,
        "where this branch left main": git("merge-base", "HEAD", "origin/main"),
        "the last release": git("rev-parse", f"{release}^{{commit}}") if release else None,
    }
    return {
        commit: reason
        for reason, commit in candidates.items()
        if commit and (is_edited or commit != head)
    }


def breaks(commit: str) -> bool:
    """Whether the contract in the tree breaks clients of the contract of a commit."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit, "buf.yaml", CONTRACT],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if archive.returncode != 0:
        print(f"proto: {commit[:12]} has no contract to compare with")
        return False
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder, filter="data")
        done = subprocess.run(["buf", "breaking", "--against", folder], cwd=ROOT, check=False)
    return done.returncode != 0


def lint() -> bool:
    return subprocess.run(["buf", "lint"], cwd=ROOT, check=False).returncode == 0


def is_released() -> bool:
    """Whether the changelog has a version: a clone need not have the tags."""
    changelog = ROOT / "CHANGELOG.md"
    return changelog.is_file() and bool(_RELEASE.search(changelog.read_text()))


def check() -> int:
    problems = [problem for package in PACKAGES for problem in stale(package)]
    for problem in problems:
        print(f"{problem}; run `nox -s proto`")
    is_bad = bool(problems)
    is_bad |= not lint()
    compared = baselines()
    for commit, reason in compared.items():
        is_broken = breaks(commit)
        is_bad |= is_broken and is_released()
        breach = "BROKEN" if is_released() else "changed, which it may before its first release,"
        print(f"proto: {breach if is_broken else 'compatible'} with {commit[:12]} ({reason})")
    if not compared:
        print("proto: no earlier contract in this clone, so nothing to compare with")
    print(f"proto: {len(problems)} stale files, lint and compatibility {'bad' if is_bad else 'ok'}")
    return 1 if is_bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="proto", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    if parser.parse_args().check:
        return check()
    for package in PACKAGES:
        for name in generate(package, ROOT / package.out):
            print(f"proto: wrote {package.out}/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

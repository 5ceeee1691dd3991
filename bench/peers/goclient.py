# SPDX-License-Identifier: AGPL-3.0-only
"""The Go client program, built from `bench/peers/go` into the cache."""

import hashlib
import subprocess
from pathlib import Path

from tools.promtool import CACHE

SOURCE = Path(__file__).parent / "go"
SDK = Path(__file__).parents[2] / "sdks/go"


def go_client() -> Path:
    """Return the program, built anew where its sources or our SDK changed.

    Raises CalledProcessError where it does not compile.
    """
    digest = hashlib.sha256()
    for folder in (SOURCE, SDK):
        for path in sorted((*folder.rglob("*.go"), *folder.rglob("go.mod"))):
            digest.update(path.read_bytes())
    binary = CACHE / "go/bin" / f"peers-{digest.hexdigest()[:12]}"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        for old in binary.parent.glob("peers-*"):
            old.unlink(missing_ok=True)
        partial = binary.with_suffix(".partial")
        subprocess.run(["go", "build", "-o", str(partial), "."], cwd=SOURCE, check=True)
        partial.replace(binary)
    return binary

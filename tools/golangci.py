# SPDX-License-Identifier: AGPL-3.0-only
"""golangci-lint, which runs Go's linters: `python tools/golangci.py run ./...` runs it, too.

It is built from the Go module proxy at a pinned version, once: about two and a half minutes of a
core. What it is built from is checked against Go's checksum database, as for every module.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "v2.15.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fila"

_COMMAND = "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"


def golangci() -> Path:
    """Return the tool, building it where it is not in the cache. Raises CalledProcessError."""
    binary = CACHE / "go/bin" / f"golangci-lint-{VERSION}"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="golangci-", dir=binary.parent) as folder:
            environment = {**os.environ, "GOBIN": folder}
            command = ("go", "install", f"{_COMMAND}@{VERSION}")
            subprocess.run(command, cwd=folder, env=environment, check=True)
            Path(folder, "golangci-lint").replace(binary)
    return binary


if __name__ == "__main__":
    os.environ.setdefault("GOLANGCI_LINT_CACHE", str(CACHE / "go/golangci"))
    sys.exit(subprocess.run([golangci(), *sys.argv[1:]], check=False).returncode)

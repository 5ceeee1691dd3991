# SPDX-License-Identifier: AGPL-3.0-only
"""Prometheus's own tool, which checks rules and evaluates queries with Prometheus's own engine.

It is built from the Go module proxy at a pinned version, once: about three minutes of a core. What
it is built from is checked against Go's checksum database, as for every module.
"""

import os
import subprocess
import tempfile
from pathlib import Path

VERSION = "v0.315.0"  # of the module; Prometheus 3.15. Wants the Go that the Go SDK wants.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fila"

_MODULE = "github.com/prometheus/prometheus"
# `go install` takes no module with replace directives, so it is built as a dependency of this one.
_MANIFEST = f"module promtool\n\ngo 1.26.0\n\nrequire {_MODULE} {VERSION}\n"


def promtool() -> Path:
    """Return the tool, building it where it is not in the cache. Raises CalledProcessError."""
    binary = CACHE / "go/bin" / f"promtool-{VERSION}"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="promtool-", dir=binary.parent) as folder:
            Path(folder, "go.mod").write_text(_MANIFEST)
            built = Path(folder, "promtool")
            # Without the discovery of a dozen clouds, which is half of the program.
            options = ("-mod=mod", "-tags=remove_all_sd", "-o", str(built))
            command = ("go", "build", *options, f"{_MODULE}/cmd/promtool")
            subprocess.run(command, cwd=folder, check=True)
            built.replace(binary)
    return binary


if __name__ == "__main__":
    print(promtool())

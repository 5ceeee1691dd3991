# SPDX-License-Identifier: AGPL-3.0-only
"""Libraries that stand between a broker and the system, to be preloaded into its process.

It compiles them. What each one fakes is written at the top of its source.
"""

import subprocess
from pathlib import Path

FAULTFS = Path(__file__).parent / "storage" / "faultfs.c"


def compiled(source: Path, folder: Path) -> Path:
    """Compile one and return the library for LD_PRELOAD."""
    library = folder / source.with_suffix(".so").name
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(source), "-ldl"], check=True)
    return library

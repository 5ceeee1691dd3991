# SPDX-License-Identifier: AGPL-3.0-only
"""Runs the Python driver with one defect: `launch.py NAME sync|async`."""

import sys
from pathlib import Path

import defects

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "drivers" / "python"))


def main() -> None:
    name = sys.argv.pop(1)
    import driver

    defects.plant(name)
    driver.main()


if __name__ == "__main__":
    main()

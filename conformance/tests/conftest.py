# SPDX-License-Identifier: AGPL-3.0-only
"""Makes the runner importable: the suite is run from its own folder and is not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

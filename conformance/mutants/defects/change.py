# SPDX-License-Identifier: AGPL-3.0-only
"""How a defect gets into the SDK."""

from collections.abc import Callable
from typing import Any


def replace(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Puts `change(original)` in the place of something that exists."""
    setattr(owner, name, change(getattr(owner, name)))

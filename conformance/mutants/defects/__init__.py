# SPDX-License-Identifier: AGPL-3.0-only
"""The defects, one function each, named as in fila_conformance/mutants.

They reach into the Python SDK, which no driver may. A function that finds nothing to break fails
with an AttributeError, so a mutant cannot turn harmless when the SDK changes.
"""

from defects import calls, deliveries, operating, workers


def plant(name: str) -> None:
    """Breaks the SDK."""
    function = name.replace("-", "_")
    for module in (calls, deliveries, operating, workers):
        if hasattr(module, function):
            getattr(module, function)()
            return
    raise AttributeError(f"there is no defect {name}")

# SPDX-License-Identifier: AGPL-3.0-only
"""The table of mutants: defective drivers, and the cases that must catch each.

A case that never failed proves nothing. A mutant is the Python driver with one defect, which
conformance/mutants/defects puts into it under the same name; selftest.py runs them.
"""

from fila_conformance.mutants import calls, deliveries, operating, workers
from fila_conformance.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *calls.MUTANTS,
    *deliveries.MUTANTS,
    *operating.MUTANTS,
    *workers.MUTANTS,
)

__all__ = ["MUTANTS", "Mutant"]

# SPDX-License-Identifier: AGPL-3.0-only
"""Bugs to plant in the broker, to show that the simulation finds bugs of their kind."""

from server.tests.simulation import core_plants, restart_plants, seam_plants
from server.tests.simulation.planting import PLANTS

__all__ = ["PLANTS", "core_plants", "restart_plants", "seam_plants"]

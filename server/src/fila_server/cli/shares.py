# SPDX-License-Identifier: AGPL-3.0-only
"""Who got how much, and who should have: shares of deliveries. Pure arithmetic.

A key is *entitled* to the deliveries that were made, divided by weight among the keys that wanted
more, none getting more than it wanted (weighted max-min fairness).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fila import FairnessKeyStats

_BAR_CELLS = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Share:
    """One key's part of the deliveries between two looks, and what it was entitled to."""

    share: float
    entitled: float


def entitlements(total: int, wanted: Sequence[int], weights: Sequence[int]) -> list[float]:
    """Divides `total` by weight; who wants less leaves the rest to the others."""
    given = [0.0] * len(wanted)
    open_ = {index for index, amount in enumerate(wanted) if amount > 0}
    left = float(total)
    while open_:
        per_weight = left / sum(weights[index] for index in open_)
        content = {index for index in open_ if wanted[index] <= per_weight * weights[index]}
        if not content:
            for index in open_:
                given[index] = per_weight * weights[index]
            break
        for index in content:
            given[index] = float(wanted[index])
            left -= wanted[index]
        open_ -= content
    return given


def shares(
    before: "Sequence[FairnessKeyStats]", after: "Sequence[FairnessKeyStats]"
) -> Mapping[str, Share]:
    """What the keys of a queue got between two looks; nothing while nothing was delivered.

    What a throttle key holds back is not wanted: no turn could have delivered it.
    """
    earlier = {key.key: delivered(key) for key in before}
    got = [max(0, delivered(key) - earlier.get(key.key, delivered(key))) for key in after]
    total = sum(got)
    if not total:
        return {}
    wanted = [
        count + max(0, 0 if key.paused else key.pending_count - key.throttled)
        for count, key in zip(got, after, strict=True)
    ]
    entitled = entitlements(total, wanted, [max(1, key.weight) for key in after])
    return {
        key.key: Share(count / total, fair / total)
        for key, count, fair in zip(after, got, entitled, strict=True)
    }


def delivered(key: "FairnessKeyStats") -> int:
    """Deliveries of a key; those since it became active where the broker counts no others."""
    return key.traffic.delivered if key.traffic is not None else key.delivered


def bar(share: float, entitled: float, widest: float) -> str:
    """A share as a bar, with a mark after the cell in which the entitlement ends."""
    full, eighths = divmod(round(share / widest * _BAR_CELLS * 8), 8)
    cells = list(("█" * full + _EIGHTHS[eighths]).ljust(_BAR_CELLS + 1)[: _BAR_CELLS + 1])
    cells[math.ceil(entitled / widest * _BAR_CELLS)] = "│"
    return "".join(cells)

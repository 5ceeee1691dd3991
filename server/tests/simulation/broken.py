# SPDX-License-Identifier: AGPL-3.0-only
"""What the simulation reports: a rule that did not hold, and how that showed."""

from typing import Any

from fila_server.errors import FilaError


class Broken(AssertionError):
    """`rule` names the rule, with its number in SPEC section 5 where it has one."""

    def __init__(self, rule: str, how: str) -> None:
        super().__init__(f"rule {rule}: {how}")
        self.rule = rule


def expect(answer: Any, reason: str, asked: Any) -> None:
    """Hold an answer to being an error of that reason."""
    given = answer.reason if isinstance(answer, FilaError) else repr(answer)
    if reason == "LEASE_EXPIRED" and given == "MESSAGE_NOT_FOUND":
        return  # it is gone altogether
    if given != reason:
        raise Broken(f"errors say {reason}", f"{' '.join(str(asked).split())} gave {given}")

# SPDX-License-Identifier: AGPL-3.0-only
"""The inbox: groups are bounded by their cost, and whoever asks for little comes first."""

from typing import Any

import pytest

from fila_server.core.commands import Ack, Command, Enqueue, FrameTaken
from fila_server.runtime.inbox import GROUP_UNITS, Inbox

ITEM: Any = object()
MIB = 1024 * 1024


def acks(ticket: int, count: int) -> Ack:
    return Ack(ticket, [ITEM] * count)


def groups(inbox: Inbox) -> list[list[Command]]:
    found = []
    while inbox.has_light or inbox.has_heavy:
        found.append(inbox.take(with_heavy=True))
    return found


def test_light_commands_make_one_group_in_their_order() -> None:
    inbox = Inbox()
    commands = [FrameTaken(n) if n % 2 else acks(n, 1) for n in range(100)]
    assert all(inbox.put(command) for command in commands)
    assert groups(inbox) == [commands]


def test_light_commands_beyond_a_group_wait_for_the_next() -> None:
    inbox = Inbox()
    commands = [acks(n, 1) for n in range(2 * GROUP_UNITS)]
    for command in commands:
        inbox.put(command)
    first, second = groups(inbox)
    assert first + second == commands
    assert len(first) == GROUP_UNITS


@pytest.mark.parametrize(("items", "size"), [(GROUP_UNITS, 0), (1, 3 * MIB), (GROUP_UNITS * 4, 0)])
def test_a_group_has_one_command_that_costs_a_group(items: int, size: int) -> None:
    inbox = Inbox()
    commands = [Enqueue(n, [ITEM] * items) for n in range(3)]
    for command in commands:
        assert not inbox.put(command, size)
    assert groups(inbox) == [[command] for command in commands]


def test_heavy_commands_share_a_group_that_has_room() -> None:
    inbox = Inbox()
    quarter = GROUP_UNITS // 4
    commands = [acks(n, quarter) for n in range(6)]
    for command in commands:
        inbox.put(command)
    assert [len(group) for group in groups(inbox)] == [4, 2]


def test_light_commands_go_first_and_heavy_ones_go_on() -> None:
    inbox = Inbox()
    heavy = [acks(n, GROUP_UNITS) for n in range(3)]
    for command in heavy:
        inbox.put(command)
    for n in range(10, 13):
        light = [acks(n, 1) for _ in range(GROUP_UNITS)]  # as many as come while a group is handled
        for command in light:
            inbox.put(command)
        assert inbox.take(with_heavy=True) == [*light, heavy.pop(0)]
    assert not heavy


def test_heavy_commands_stay_while_they_rest() -> None:
    inbox = Inbox()
    heavy, light = acks(1, GROUP_UNITS), acks(2, 1)
    inbox.put(heavy)
    inbox.put(light)
    assert inbox.take(with_heavy=False) == [light]
    assert inbox.take(with_heavy=False) == []
    assert inbox.take(with_heavy=True) == [heavy]

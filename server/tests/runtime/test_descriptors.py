# SPDX-License-Identifier: AGPL-3.0-only
"""Descriptors: the store has its own, whoever connects."""

import resource
from collections.abc import Iterator

import pytest

from fila_server.runtime.descriptors import connections, raise_limit


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """Let a test lower the soft limit; the process gets it back."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_the_hard_one(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.parametrize(("limit", "most"), [(512, 128), (1024, 384), (4096, 3456)])
def test_connections_leave_descriptors_to_the_store(
    limits: tuple[int, int], limit: int, most: int
) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    assert connections(10_000) == most
    assert connections(100) == 100

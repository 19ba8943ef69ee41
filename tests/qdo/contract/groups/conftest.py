"""Groups in a tree: the simulated one, and ZooKeeper's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.qdo.contract.backends import BACKENDS
from tests.qdo.contract.groups.in_tree import TreeGroup


@pytest.fixture
def queues() -> dict[str, int]:
    return {}


@pytest.fixture
def make(queues: dict[str, int]) -> Callable[[int], str]:
    """Makes queues with names of their own; returns the names."""
    numbers = itertools.count(1)

    def make(partitions: int) -> str:
        name = f"q{next(numbers)}"
        queues[name] = partitions
        return name

    return make


@pytest.fixture
def group(backend: str, request: pytest.FixtureRequest, queues: dict[str, int]) -> Iterator[TreeGroup]:
    """A group in a tree; skips tests that only the service's groups have."""
    if (mark := request.node.get_closest_marker("service_only")) is not None:
        pytest.skip(mark.args[0])
    service = BACKENDS[backend](request)
    with asyncio.Runner() as runner:
        group = TreeGroup(runner, service, queues)
        yield group
        group.close()
        runner.run(service.close())

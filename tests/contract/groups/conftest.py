"""Fixtures of groups on each store, served by two processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from queuey.model.rights import Caller
from queuey.storage import Store
from tests.backends import Clock
from tests.contract.groups.group import Group, GroupService
from tests.contract.samples import fresh_name, make_queue

Make = Callable[[int], str]
"""Creates a queue with that many partitions; returns its name."""


@pytest.fixture
def services(store: Store, other: Store, clock: Clock) -> Iterator[list[GroupService]]:
    callers: dict[bytes, Caller] = {}
    opened = [GroupService(each, clock, callers) for each in (store, other)]
    yield opened
    for service in opened:
        service.core.run(service.groups.end())


@pytest.fixture
def group(services: list[GroupService], clock: Clock) -> Group:
    return Group(services, clock, fresh_name())


@pytest.fixture
def make(store: Store) -> Make:
    return lambda partitions: make_queue(store, partitions=partitions).name

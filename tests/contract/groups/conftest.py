"""Groups on each store, served by two processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from queuey.service import Service
from queuey.storage import Store
from tests.backends import Clock
from tests.contract.groups.in_service import HandCore, ServiceGroup
from tests.contract.samples import fresh_name, make_queue

Make = Callable[[int], str]
"""Creates a queue with so many partitions; returns its name."""


@pytest.fixture
def services(store: Store, other: Store, clock: Clock) -> Iterator[list[Service]]:
    """Two processes."""
    found = [Service(each, core=HandCore(clock)) for each in (store, other)]
    yield found
    for service in found:
        service.core.run(service.groups.end())


@pytest.fixture
def group(services: list[Service], clock: Clock) -> ServiceGroup:
    """A group without members."""
    return ServiceGroup(services, clock, fresh_name())


@pytest.fixture
def make(store: Store) -> Make:
    """Creates queues."""
    return lambda partitions: make_queue(store, partitions=partitions).name

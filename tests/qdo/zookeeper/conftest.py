"""Fixtures: a chroot behind a network that tests break, and members as in the coordination suite."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.qdo.contract.conftest import coordinator, join, open_one, start
from tests.qdo.contract.zookeeper import ZooKeeperService
from tests.servers.plugin import ZooKeeper

__all__ = ["coordinator", "join", "open_one", "start"]


@pytest.fixture
async def service(zookeeper: ZooKeeper) -> AsyncIterator[ZooKeeperService]:
    made = ZooKeeperService(zookeeper.connect_string)
    try:
        yield made
    finally:
        await made.close()

"""A client, and nodes whose answers the test decides."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.storage.cassandra.protocol.scripted_node import Scene


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """Two nodes, each with all rows, and a client that is connected to both."""
    scene = Scene()
    await scene.await_connected()
    yield scene
    scene.client.close()

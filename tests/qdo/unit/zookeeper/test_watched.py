"""When a session reads cached data anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from qdo.coordination.tree import ANY_VERSION, Create, SetData
from qdo.coordination.watched import WatchedNodes
from tests.qdo.contract.simulated import SimulatedService
from tests.sim.groups.tree import TreeLink


@pytest.fixture
async def link() -> AsyncIterator[TreeLink]:
    """An open link to a tree with the nodes ``/members`` and ``/members/a``."""
    link = SimulatedService().link()
    await link.open()
    await link.apply([(Create("/members"), Create("/members/a"))])
    yield link
    await link.close()


async def test_what_changes_while_it_is_read_is_not_kept(link: TreeLink) -> None:
    """Data that changes while it is read is not cached, and neither are names."""
    watching = WatchedNodes(link)
    reading = asyncio.gather(watching.read_node("/members/a"), watching.read_children("/members"))
    await asyncio.sleep(0)
    watching.invalidate(["/members/a", "/members"])
    await reading
    link.tree.apply(0, (SetData("/members/a", b"new", ANY_VERSION), Create("/members/b")))
    node = await watching.read_node("/members/a")
    assert node is not None
    assert node.data == b"new"
    assert await watching.read_children("/members") == ["a", "b"]


async def test_what_did_not_change_is_read_once(link: TreeLink) -> None:
    """Nodes and names are cached until a change is reported; names in a missing node are not cached."""
    watching = WatchedNodes(link)
    before = (
        await watching.read_node("/members/a"),
        await watching.read_children("/members"),
        await watching.read_children("/none"),
    )
    link.tree.apply(
        0, (SetData("/members/a", b"new", ANY_VERSION), Create("/members/b"), Create("/none"), Create("/none/c"))
    )
    kept = await watching.read_node("/members/a"), await watching.read_children("/members")
    assert kept == before[:2]
    assert await watching.read_children("/none") == ["c"]

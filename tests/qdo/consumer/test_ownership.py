"""The order in which the user is told of partitions, whatever the group does at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qdo.consumer.commits import Commits
from qdo.consumer.fetcher import Fetcher
from qdo.consumer.ownership import Callbacks, Ownership
from qdo.consumer.settings import ConsumerSettings
from qdo.consumer.shelf import Shelf
from qdo.coordination import Held, Offset
from qdo.errors import NotOwner
from qdo.partitions import Partition
from tests.qdo.consumer.conftest import Site
from tests.qdo.unit.samples import ONE, TWO, message_id, messages


class Scene:
    """An ownership that reads from nowhere, with callbacks that can be held up.

    Attributes:
        calls: The callbacks that were begun and ended, in order.
        holds: Callbacks that wait until their event is set, by name.
    """

    def __init__(self, site: Site) -> None:
        self.calls: list[str] = []
        self.holds: dict[str, asyncio.Event] = {}
        self.shelf = Shelf()
        nothing: Any = lambda *_: None  # noqa: E731 - told of things that do not happen here
        # A client whose calls go nowhere: this is about who is told what.
        site.gate.shut()
        self.fetcher = Fetcher(
            site.reach(), self.shelf, ConsumerSettings(), arrived=nothing, missing=nothing, failed=nothing
        )
        self.owner = Ownership(
            self.shelf,
            self.fetcher,
            Callbacks(*(self._callback(name) for name in ("assign", "revoke", "lost"))),
            begin=None,
            leaving=self._leaving,
            changed=self.fetcher.kick,
        )

    async def assigned(self, *partitions: Partition) -> None:
        """Assigns partitions of which message 1 was committed."""
        held = {one: Held(one, Offset(message_id(1)), 1) for one in partitions}
        await self.owner.assigned(held)

    async def _leaving(self, partitions: frozenset[Partition]) -> None:
        self.calls.append("leaving")

    def _callback(self, name: str) -> Any:  # noqa: ANN401 - a callback
        async def tell(partitions: frozenset[Partition]) -> None:
            numbers = "".join(str(one.number) for one in sorted(partitions))
            self.calls.append(f"{name} {numbers}")
            if name in self.holds:
                await self.holds[name].wait()
                self.calls.append(f"{name} {numbers} done")

        return tell


@pytest.fixture
def scene(site: Site) -> Scene:
    """A scene."""
    return Scene(site)


async def test_revocations_wait_for_assignments(scene: Scene) -> None:
    """Nobody is told that a partition goes while being told that it comes; others are."""
    hold = scene.holds["assign"] = asyncio.Event()
    assigning = asyncio.create_task(scene.assigned(ONE))
    await asyncio.sleep(0)
    revoking = asyncio.create_task(scene.owner.revoke(frozenset([ONE])))
    await asyncio.sleep(0)
    del scene.holds["assign"]
    await scene.assigned(TWO)
    assert scene.calls == ["assign 1", "assign 2"]
    hold.set()
    await asyncio.gather(assigning, revoking)
    assert scene.calls[2:] == ["assign 1 done", "revoke 1", "leaving"]
    assert set(scene.owner.tracks) == {TWO}
    assert not scene.owner.tracks[TWO].closed
    await scene.fetcher.close()


async def test_a_loss_stops_the_partition_at_once(scene: Scene) -> None:
    """Even while the user is still being told of the assignment; he hears of the loss afterwards."""
    hold = scene.holds["assign"] = asyncio.Event()
    assigning = asyncio.create_task(scene.assigned(ONE))
    await asyncio.sleep(0)
    losing = asyncio.create_task(scene.owner.lost(frozenset([ONE])))
    await asyncio.sleep(0)
    assert scene.owner.tracks == {}
    hold.set()
    await asyncio.gather(assigning, losing)
    assert scene.calls == ["assign 1", "assign 1 done", "lost 1"]
    assert scene.fetcher._free == {}


async def test_a_loss_during_a_revocation_is_told_at_once(scene: Scene) -> None:
    """Whoever finishes his work in on_revoke learns that it is in vain."""
    await scene.assigned(ONE)
    hold = scene.holds["revoke"] = asyncio.Event()
    revoking = asyncio.create_task(scene.owner.revoke(frozenset([ONE])))
    await asyncio.sleep(0)
    await scene.owner.lost(frozenset([ONE]))
    assert scene.calls == ["assign 1", "revoke 1", "lost 1"]
    hold.set()
    await revoking


async def test_a_partition_that_comes_back_is_another_one(scene: Scene) -> None:
    """A revocation that ends late, or was cut short, does not take the new one away."""
    await scene.assigned(ONE)
    scene.holds["revoke"] = asyncio.Event()
    revoking = asyncio.create_task(scene.owner.revoke(frozenset([ONE])))
    await asyncio.sleep(0)
    await scene.assigned(ONE)
    track = scene.owner.tracks[ONE]
    revoking.cancel()
    await asyncio.gather(revoking, return_exceptions=True)
    assert scene.owner.tracks[ONE] is track
    assert track.live
    assert track.flight is not None
    await scene.fetcher.close()


async def test_commits_end_with_the_revocation(scene: Scene) -> None:
    """Until on_revoke has returned they are recorded, from then on they are refused without asking anybody."""
    asked = []

    async def record(offsets: Any) -> frozenset[Partition]:  # noqa: ANN401 - offsets
        asked.append(dict(offsets))
        return frozenset()

    commits = Commits(scene.owner.tracks, record, None)
    await scene.assigned(ONE)
    scene.shelf.put(scene.owner.tracks[ONE], messages(2, 9))
    scene.shelf.hand_out(scene.shelf.take(3))
    hold = scene.holds["revoke"] = asyncio.Event()
    revoking = asyncio.create_task(scene.owner.revoke(frozenset([ONE])))
    await asyncio.sleep(0)
    assert scene.shelf.take(10) == []
    await commits.handed_out()
    hold.set()
    await revoking
    with pytest.raises(NotOwner):
        await commits.given({ONE: message_id(4)})
    assert asked == [{ONE: message_id(4)}]
    await scene.fetcher.close()


async def test_what_is_stopped_is_not_read_on(scene: Scene, site: Site) -> None:
    """The call that only it was part of is broken off."""
    await scene.assigned(ONE)
    await site.gate.until(lambda: site.gate.held == 1)
    await scene.owner.revoke(frozenset([ONE]))
    await asyncio.gather(*scene.fetcher._tasks, return_exceptions=True)
    assert (site.gate.held, scene.fetcher._flights, scene.fetcher._free) == (0, set(), {})

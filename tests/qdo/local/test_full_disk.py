"""A full disk suspends the members of a process; they go on when there is space again."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from qdo.coordination import Member, OwnedOffset
from qdo.coordination.opening import open_coordinator
from qdo.errors import CoordinationLost
from qdo.partitions import Partition
from tests.qdo.contract.events import Heard
from tests.qdo.contract.samples import some
from tests.waiting import PATIENCE_SECONDS

ROOM = 600_000
"""Bytes that a file may grow to while the disk is full."""


def limit(size: int) -> None:
    """Sets how large any file of this process may become."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


async def fill(path: Path) -> tuple[list[str], list[str | None]]:
    """Commits until the disk is full, makes room and goes on.

    Returns:
        The events in between, and what is recorded in the end for each partition.
    """
    coordinator = open_coordinator(f"local://{path}", "group", session_timeout=20)
    await coordinator.open()
    heard = Heard()
    session = await coordinator.join(Member("a"), heard)
    held: dict[Partition, OwnedOffset] = await session.claim(some(500))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit(ROOM)
    acknowledged = 0
    try:
        while acknowledged < 10_000:
            given = [(each, f"{acknowledged + 1}") for each in held.values()]
            held |= {partition: each for partition, each in (await session.commit(given)).items() if each}
            acknowledged += 1
    except CoordinationLost:
        await heard.next("suspended")
    limit(hard)
    await heard.next("connected")
    found = await coordinator.offsets()
    assert {offset.id for offset in found.values()} <= {str(acknowledged), str(acknowledged + 1)}
    again = await session.claim(some(500))
    done = await session.commit([(each, "end") for each in again.values()])
    assert all(done.values())
    recorded = [offset.id for offset in (await coordinator.offsets()).values()]
    events = [str(event) for event in heard.events if event != "changed"]
    await coordinator.close()
    return events, recorded


def run(path: Path) -> tuple[list[str], list[str | None]]:
    """Runs in a process of its own, whose limits are nobody else's."""
    return asyncio.run(fill(path))


def test_a_full_disk_suspends(path: Path) -> None:
    """What was acknowledged stays, and the members commit again once they can."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        events, recorded = pool.submit(run, path).result(PATIENCE_SECONDS)
    assert events == ["suspended", "connected"]
    assert recorded == ["end"] * 500

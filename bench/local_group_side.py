"""A group on a local file, for one tree of the project: ``python bench/local_group_side.py FILE COUNT…``.

It runs as a file and not as a module, so that ``PYTHONPATH`` chooses the tree whose Qdo it uses. For each line on
standard input it takes all steps once, and prints a line of JSON: microseconds of this process's CPU for each step.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

from qdo.coordination import Coordinator, Member, TargetAssignment
from qdo.coordination.opening import open_coordinator
from qdo.partitions import Partition, Queue

T = TypeVar("T")
QUEUE = Queue("3f0a9c52-7d5e-4f1c-9a3e-0c7de2d54d10", "bench", "quakes")
MESSAGE = "01890f6c5b3a7c1e8d2f"
TOGETHER = 100
"""Number of partitions that the repetitions of a step have together, at least."""
TURNS = 8
"""Number of times that a member joins and leaves."""


class StepClock:
    """Adds up the CPU of steps.

    Attributes:
        spent: Microseconds by step.
    """

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    async def take(self, step: str, doing: Awaitable[T], times: int = 1) -> T:
        """Waits for a step, or for a part of one.

        Args:
            step: Its name.
            doing: What it does.
            times: Number of repetitions, of which the average counts.
        """
        began = time.process_time()
        done = await doing
        self.spent[step] = self.spent.get(step, 0.0) + (time.process_time() - began) * 1e6 / times
        return done


def coordinator(path: Path, group: str) -> Coordinator:
    """Returns a connection that is not open."""
    return open_coordinator(f"local://{path}", group, session_timeout=30)


async def own(clock: StepClock, path: Path, group: str, partitions: list[Partition]) -> None:
    """Has a member claim partitions, commit them and release them, and claim them again."""
    count = len(partitions)
    times = max(1, TOGETHER // count)
    meeting = coordinator(path, group)
    await meeting.open()
    session = await meeting.join(Member("one"), lambda _: None)
    held: Any = await clock.take(f"claim of {count}, the first ever", session.claim(partitions))
    for _ in range(times):
        offsets = [(each, MESSAGE) for each in held.values()]
        committed = await clock.take(f"commit of {count}", session.commit(offsets), times)
        await clock.take(f"release of {count}", session.release(committed), times)
        held = await clock.take(f"claim of {count}", session.claim(partitions), times)
    if len(held) != count:
        raise AssertionError(f"{len(held)} partitions of {count} were claimed")
    await session.leave()
    await meeting.close()


async def come_and_go(clock: StepClock, path: Path, group: str, partitions: list[Partition]) -> None:
    """Has a second member join a group, get half of the partitions by a new target, and leave."""
    count = len(partitions)
    meeting = coordinator(path, group)
    await meeting.open()
    leader = await meeting.join(Member("one"), lambda _: None)
    await leader.claim(partitions)
    await share(leader, [leader], partitions)
    for _ in range(TURNS):
        other = coordinator(path, group)
        joins, leaves = f"a member joins, {count} partitions", f"a member leaves, {count} partitions"
        await clock.take(joins, other.open(), TURNS)
        session = await clock.take(joins, other.join(Member("two"), lambda _: None), TURNS)
        for sharing in ([leader, session], [leader]):
            target = share(leader, sharing, partitions)
            await clock.take(f"a new target of {count} partitions", target, 2 * TURNS)
        await clock.take(leaves, session.leave(), TURNS)
        await clock.take(leaves, other.close(), TURNS)
    await leader.leave()
    await meeting.close()


async def share(leader: Any, sharing: list[Any], partitions: list[Partition]) -> None:  # noqa: ANN401 - of either tree
    """Has a leader share out partitions, and each member read what is its own."""
    names = sorted(await leader.members())[: len(sharing)]
    before = await leader.target()
    target = {partition: names[number % len(names)] for number, partition in enumerate(partitions)}
    if not await leader.set_target(TargetAssignment(target), before.version):
        raise AssertionError("the target was not set")
    for one in sharing:
        await one.lead()
        await one.assignment()


def main(path: Path, counts: list[int]) -> None:
    """Takes rounds, each with groups of its own."""
    for turn, _ in enumerate(sys.stdin):
        clock = StepClock()
        for count in counts:
            partitions = [Partition(QUEUE, number) for number in range(1, count + 1)]
            asyncio.run(own(clock, path, f"owner-{turn}-{count}", partitions))
        asyncio.run(come_and_go(clock, path, f"members-{turn}", partitions))
        print(json.dumps(clock.spent), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(each) for each in sys.argv[2:]])

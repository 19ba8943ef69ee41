"""A member that counts, in a process of its own, whatever happens to it.

Each partition's offset is a number. The process takes partitions, commits one more than what is recorded, a few times,
and releases them. It says which commits it tries (``?3``: one of partition 3), and which were recorded (``+3``) or
refused (``-3``). So the numbers recorded in the end tell whether a commit was lost, or counted on something that was
not there any more.

Run as ``python -m tests.qdo.contract.storming URL GROUP MEMBER SESSION_TIMEOUT SEED``. Ends at a line of input.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterable

from qdo.coordination import Member, OwnedOffset, Session
from qdo.coordination.opening import open_coordinator
from qdo.errors import CoordinationLost, MemberExists, SessionLost
from qdo.partitions import Partition
from tests.qdo.contract.samples import some

PARTITIONS = some(6)
PAUSE = 0.05
"""Seconds between two tries."""


def say(what: str, partitions: Iterable[Partition]) -> None:
    """Says something of partitions; a line that is cut off by a kill was not said."""
    for partition in partitions:
        sys.stdout.write(f"{what}{partition.number}\n")
    sys.stdout.flush()


async def count(session: Session, chance: random.Random) -> None:
    """Takes some partitions, adds to their numbers, and releases them.

    Raises:
        CoordinationLost, SessionLost
    """
    held = dict(await session.claim(chance.sample(PARTITIONS, 3)))
    for _ in range(chance.randrange(1, 20)):
        given: list[tuple[OwnedOffset, str]] = [(each, str(int(each.offset.id or 0) + 1)) for each in held.values()]
        say("?", held)
        try:
            answer = await session.commit(given)
        except SessionLost:
            say("-", held)
            raise
        held = {partition: each for partition, each in answer.items() if each is not None}
        say("+", held)
        say("-", answer.keys() - held.keys())
    await session.release(held)


async def live(url: str, group: str, member: str, session_timeout: float, seed: str) -> None:
    """Joins, counts, and joins again when the session is lost."""
    chance = random.Random(f"{seed}-{member}")
    coordinator = open_coordinator(url, group, session_timeout=session_timeout)
    while True:  # bounded: the test kills this program
        try:
            await coordinator.open()
            session = await coordinator.join(Member(member), lambda _: None)
            while True:  # bounded: likewise
                try:
                    await count(session, chance)
                except CoordinationLost:
                    await asyncio.sleep(PAUSE)
                await asyncio.sleep(chance.random() * PAUSE)
        except (SessionLost, CoordinationLost, MemberExists):
            await asyncio.sleep(PAUSE)


async def main() -> None:
    """Counts until there is a line of input."""
    url, group, member, session_timeout, seed = sys.argv[1:]
    living = asyncio.create_task(live(url, group, member, float(session_timeout), seed))
    reading = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    done, _ = await asyncio.wait({living, asyncio.ensure_future(reading)}, return_when=asyncio.FIRST_COMPLETED)
    if living in done:
        living.result()


if __name__ == "__main__":
    asyncio.run(main())

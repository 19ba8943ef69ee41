"""A member in a process of its own, for tests that stop and kill it: one request and one answer per line.

Run as ``python -m tests.qdo.contract.member URL GROUP MEMBER SESSION_TIMEOUT OUTLAST``. For a group of the service the
URL is the path of a profile, and the member is named after its queue.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from qdo.errors import QdoError
from qdo.group.opening import open_coordinator
from qdo.group.protocol import Coordinator, Session
from qdo.group.records import Event, Member, SessionOffset
from qdo.group.service import ServiceCoordinator
from qdo.partitions import Partition, subscribe
from queuey.client import AsyncClient
from queuey.client.credentials.profile import read_profile


class CommandedMember:
    """Executes requests, and remembers the member's partitions."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._held: dict[Partition, SessionOffset] = {}

    async def claim(self, names: list[str]) -> list[str]:
        claimed = await self._session.claim([Partition.parse(name) for name in names])
        self._held |= claimed
        return sorted(map(str, claimed))

    async def release(self, names: list[str]) -> None:
        await self._session.release([Partition.parse(name) for name in names])

    async def commit(self, offsets: dict[str, str]) -> list[str]:
        """Commits; answers with the partitions whose id was recorded."""
        by_partition = {Partition.parse(name): offset for name, offset in offsets.items()}
        held = await self._session.commit([(self._held[each], offset) for each, offset in by_partition.items()])
        recorded = {partition: each for partition, each in held.items() if each is not None}
        self._held |= recorded
        return sorted(map(str, recorded))

    async def hold(self, seconds: float) -> None:
        """Holds the interpreter: nothing else of this process runs meanwhile, not even other threads."""
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))

    async def stand(self, seconds: float) -> None:
        """Blocks the event loop, but no other thread."""
        time.sleep(seconds)  # noqa: ASYNC251 - as asked


async def main(url: str, group: str, member: str, session_timeout: float, max_blocked_seconds: float) -> None:
    events: list[Event] = []
    async with AsyncExitStack() as opened:
        coordinator: Coordinator
        if "://" in url:
            coordinator, joining = open_coordinator(url, group, session_timeout=session_timeout), Member(member)
        else:
            where = read_profile(Path(url))
            client = await opened.enter_async_context(AsyncClient(where.url, key=where.key))
            coordinator = ServiceCoordinator(client, group, session_timeout=session_timeout)
            joining = Member(member, subscribe([member], [], (await client.hello()).id, client.application))
        coordinator.outlast = max_blocked_seconds
        await coordinator.open()
        await run_commands(await coordinator.join(joining, events.append))
        await coordinator.close()


async def run_commands(session: Session) -> None:
    """Reports that it has joined, and executes requests until the input ends; answers a failed one with its code."""
    obeying = CommandedMember(session)
    loop = asyncio.get_running_loop()
    answer: dict[str, Any] = {"done": "joined"}
    while True:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        line = await loop.run_in_executor(None, sys.stdin.readline)
        if not line:
            break
        name, *arguments = json.loads(line)
        try:
            answer = {"done": await getattr(obeying, name)(*arguments)}
        except QdoError as error:
            answer = {"error": error.code}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], *map(float, sys.argv[4:])))

"""A member of a service's group in a process of its own; see ``tests/qdo/contract/member.py``.

Run as ``python -m tests.qdo.service.member PROFILE GROUP QUEUE SESSION_TIMEOUT OUTLAST``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from qdo.coordination import Event, Member, ServiceCoordinator
from qdo.partitions import subscribe
from queuey.client import AsyncClient
from queuey.client.credentials.profile import read_profile
from tests.qdo.contract.member import run_commands


async def main(profile: Path, group: str, queue: str, session_timeout: float, max_blocked_seconds: float) -> None:
    where = read_profile(profile)
    events: list[Event] = []
    async with AsyncClient(where.url, key=where.key) as client:
        coordinator = ServiceCoordinator(client, group, session_timeout=session_timeout)
        coordinator.outlast = max_blocked_seconds
        wants = subscribe([queue], [], (await client.hello()).id, client.application)
        await run_commands(await coordinator.join(Member("member", wants), events.append))
        await coordinator.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], *map(float, sys.argv[4:])))

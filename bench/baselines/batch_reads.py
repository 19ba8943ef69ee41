"""A bare loop over the client's batch reads: page after page, and nothing done with the messages.

``python -m bench.baselines.batch_reads VARIANT URL QUEUE MESSAGES WARM`` reads so many messages from the
beginning of a queue; prints messages a second and microseconds of its CPU a message, both without the first ``WARM``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable

from bench.load.traffic import KEY
from queuey.client import EARLIEST, AsyncClient, Client, Page
from queuey.client.calls.call import Point

PAGE = 1000


class Meter:
    """Counts messages and says how fast they came.

    Args:
        warm: So many are not measured.
    """

    def __init__(self, warm: int) -> None:
        self._warm = warm
        self._begun: tuple[int, float, float] | None = None
        self.count = 0

    def add(self, page: Page) -> None:
        """Counts a page."""
        self.count += len(page.messages)
        if self._begun is None and self.count >= self._warm:
            self._begun = self.count, time.perf_counter(), time.process_time()

    def result(self) -> tuple[float, float]:
        """Returns messages a second and microseconds of CPU a message."""
        if self._begun is None:
            return 0.0, 0.0
        count, instant, cpu = self._begun
        measured = self.count - count
        return measured / (time.perf_counter() - instant), (time.process_time() - cpu) * 1e6 / measured


def blocking(url: str, queue: str, messages: int, meter: Meter) -> None:
    """Reads with the client for threads."""
    since: Point = EARLIEST
    with Client(url, key=KEY) as client:
        while meter.count < messages:
            page = client.read(queue, limit=PAGE, since=since)
            meter.add(page)
            since = page.next


def awaiting(url: str, queue: str, messages: int, meter: Meter) -> None:
    """Reads with the client for async code."""

    async def read() -> None:
        since: Point = EARLIEST
        async with AsyncClient(url, key=KEY) as client:
            while meter.count < messages:
                page = await client.read(queue, limit=PAGE, since=since)
                meter.add(page)
                since = page.next

    asyncio.run(read())


VARIANTS: dict[str, Callable[[str, str, int, Meter], None]] = {"Client": blocking, "AsyncClient": awaiting}


if __name__ == "__main__":
    variant, address, name, wanted, unmeasured = sys.argv[1:]
    counted = Meter(int(unmeasured))
    VARIANTS[variant](address, name, int(wanted), counted)
    if counted.count != int(wanted):
        sys.exit(f"{counted.count} messages read instead of {wanted}")
    print(json.dumps(counted.result()))

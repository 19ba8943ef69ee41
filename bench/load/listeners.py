"""Many live streams, each of its own queue, in one process.

Run it as ``python -m bench.load.listeners``; it reads one JSON plan from standard input. It prints ``open`` when all
streams are open. After the next line or the end of its input, it prints JSON with the milliseconds from each message's
timestamp to its arrival.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import TypedDict

from bench.load.traffic import request

MAX_CONCURRENT_OPENINGS = 200
"""Connections that are opened concurrently."""


class ListenPlan(TypedDict):
    """The plan: one stream for each of these paths. ``times`` is the pattern of a message's timestamp."""

    port: int
    paths: list[str]
    times: str


class ReceivedMessages(TypedDict):
    """The received messages: their number, and their delays in milliseconds."""

    messages: int
    p50: float
    p99: float
    longest: float


class Listener(asyncio.Protocol):
    """One stream: appends the delay of each message to ``heard``, and sets ``begun`` with the first data."""

    def __init__(self, ask: bytes, heard: list[float], begun: asyncio.Event, times: re.Pattern[bytes]) -> None:
        self._ask = ask
        self._times = times
        self._heard = heard
        self.begun = begun
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._ask)  # type: ignore[attr-defined] # it is a socket's transport

    def data_received(self, data: bytes) -> None:
        self.begun.set()
        now = time.time()
        self._heard += [now - float(match[1]) for match in self._times.finditer(data)]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True


async def listen(plan: ListenPlan) -> ReceivedMessages:
    """Opens all streams and prints ``open``; listens until standard input has a line or ends.

    Arrivals while streams are opened do not count. Exits with an error if a stream has ended.
    """
    loop = asyncio.get_running_loop()
    heard: list[float] = []
    listeners: list[Listener] = []
    pattern = re.compile(plan["times"].encode())

    async def open_one(path: str) -> None:
        ask = request("GET", path, headers={"Accept": "text/event-stream"}).encode()
        _, listener = await loop.create_connection(
            lambda: Listener(ask, heard, asyncio.Event(), pattern), "127.0.0.1", plan["port"]
        )
        await listener.begun.wait()
        listeners.append(listener)

    for start in range(0, len(plan["paths"]), MAX_CONCURRENT_OPENINGS):
        await asyncio.gather(*(open_one(path) for path in plan["paths"][start : start + MAX_CONCURRENT_OPENINGS]))
    heard.clear()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    if ended_streams := sum(listener.ended for listener in listeners):
        raise SystemExit(f"{ended_streams} streams ended early")
    times = sorted(heard) or [0.0]
    p50, p99, longest = (times[min(int(len(times) * share), len(times) - 1)] * 1000 for share in (0.5, 0.99, 1))
    return {"messages": len(heard), "p50": p50, "p99": p99, "longest": longest}


if __name__ == "__main__":
    listen_plan: ListenPlan = json.loads(sys.stdin.readline())
    print(json.dumps(asyncio.run(listen(listen_plan))))

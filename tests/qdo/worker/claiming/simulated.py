"""An event loop in simulated time, and a queue whose jobs are claimed over HTTP, as far as a worker needs it."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections import deque
from collections.abc import Container, Iterable
from typing import Any

import httpx2

from tests.client.scripted import claims, ok, settlement

LATENCY = 0.002
"""Seconds from a request to its answer, if it does not wait."""


class SimulatedTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose clock stands still while callbacks run, and skips the time in which none is due."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        super().__init__(_SkippingSelector(self))

    def time(self) -> float:
        return self.now


class _SkippingSelector(selectors.SelectSelector):
    def __init__(self, loop: SimulatedTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing is due any more"
            self._loop.now += timeout
        return ready


class JobQueue(httpx2.AsyncBaseTransport):
    """Jobs ``m1`` to ``m<count>``, oldest first. Claims that wait are served in turn.

    Attributes:
        given_back: How often each job was released unbegun.
        done: The acknowledged jobs.
        suspected: Jobs that come alone, because an earlier claim of them has expired.
    """

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._polls: deque[asyncio.Event] = deque()
        self.given_back: dict[int, int] = {}
        self.done: set[int] = set()
        self.suspected: Container[int] = ()

    def add(self, numbers: Iterable[int]) -> None:
        self._put([*self._waiting, *numbers])

    def _put(self, numbers: list[int]) -> None:
        self._waiting = deque(sorted(numbers))
        if self._polls and self._waiting:
            self._polls.popleft().set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(LATENCY)
        path, sent = request.url.path, json.loads(await request.aread() or "{}")
        if path.endswith("/claims"):
            self._acknowledge(sent.get("acknowledge", []))
            return await self._claim(int(request.url.params["limit"]), float(request.url.params.get("wait", 0)))
        if path.endswith("/release"):
            numbers = [int(receipt[1:]) for receipt in sent["receipts"]]
            for number in numbers:
                self.given_back[number] = self.given_back.get(number, 0) + 1
            self._put([*self._waiting, *numbers])
        elif path.endswith("/ack"):
            self._acknowledge(sent["receipts"])
        elif path.endswith("_rights"):
            return ok(queues=[{"queue_name": name, "actions": ["work"]} for name in sent["queues"]])
        elif not path.endswith("/renew"):
            return httpx2.Response(200, json={"version": "0", "store": "sqlite", "id": 32 * "0"})
        return settlement()

    async def _claim(self, limit: int, wait: float) -> httpx2.Response:
        if not self._waiting and wait:
            news = asyncio.Event()
            self._polls.append(news)
            try:
                await asyncio.wait_for(news.wait(), wait)
            except TimeoutError:
                self._polls.remove(news)
        numbers = [number for number in self._waiting if number not in self.suspected][:limit]
        suspect = next((number for number in self._waiting if number in self.suspected), None)
        if suspect is not None and suspect < min(numbers, default=suspect + 1):
            numbers = [suspect]
        self._put([number for number in self._waiting if number not in numbers])
        return claims(*numbers, suspected=numbers == [suspect])

    def _acknowledge(self, receipts: list[Any]) -> None:
        self.done |= {int(receipt[1:]) for receipt in receipts}

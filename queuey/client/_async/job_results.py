"""Waits for the results of jobs: callers of one moment share a poll."""

from __future__ import annotations

from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from queuey.api.jobs import MAX_JOBS, UNFINISHED
from queuey.client.calls import job_calls
from queuey.client.calls.call import Seconds, location_text, number_text, seconds
from queuey.client.claims.changes import AsyncChange
from queuey.client.errors import ResultTimeout
from queuey.client.forks import begin_in_children

if TYPE_CHECKING:
    from queuey.api.jobs import JobInfo
    from queuey.client._async.sender import AsyncSender
    from queuey.client.results import Receipt

WAITS = (20.0, 5.0, 2.0, 1.0)
"""Max seconds of a poll, by the number of those under way. A caller that comes meanwhile begins one of its own; beyond
the last number callers wait until one ends."""
GATHERING = 0.005
"""Number of seconds for which a poll waits for callers of the same moment."""


class AsyncJobResults:
    """Waits for results of one client's jobs. For async code, in one event loop.

    A caller whose job no poll asks for begins one, for all such jobs of its queue. When a poll ends, another of the
    callers begins the next one: there is no task or thread in the background.
    """

    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender
        self._change = AsyncChange()
        self.begin_in_child()
        begin_in_children(self)

    def begin_in_child(self) -> None:
        self._queues: dict[str, _Waiting] = {}

    def bound(self, queue: str, receipts: list[Receipt]) -> list[Receipt]:
        """Gives receipts of a queue the means to ask for their jobs; returns them."""
        source = self, queue
        for receipt in receipts:
            receipt.__dict__["source"] = source
        return receipts

    async def show(self, queue: str, receipt: Receipt, *, states: bool = False) -> JobInfo:
        [call] = job_calls.jobs(queue, [receipt], states=states)
        [info] = await self._sender.run(call)
        return info

    async def result(self, queue: str, receipt: Receipt, timeout: Seconds | None) -> Any:  # noqa: ANN401, ASYNC109 - any JSON value; part of the API
        """Waits until a job has ended; returns its result.

        Raises:
            ResultTimeout: It has not ended in time.
            JobError: It has no result that is known.
            InvalidArgument: The timeout is not a number.
        """
        clock, place = self._sender.timing.clock, location_text(receipt)
        end = inf if timeout is None else clock() + float(number_text("timeout", seconds(timeout)))
        if end <= clock():
            info = await self.show(queue, receipt)
            if info.status in UNFINISHED:
                raise ResultTimeout(f"job {place} has not ended")
            return job_calls.result_of(info)
        async with self._change:
            waiting = self._queues.setdefault(queue, _Waiting())
            waiting.add(place)
        try:
            while True:
                async with self._change:
                    while True:
                        if place in waiting.ended:
                            return job_calls.result_of(waiting.ended[place])
                        if (remaining := end - clock()) <= 0:
                            raise ResultTimeout(f"job {place} has not ended in {timeout} s")
                        if waiting.begin(place):
                            break
                        await self._change.wait(remaining)
                await self._poll(queue, waiting, place, remaining)
        finally:
            async with self._change:
                waiting.remove(place)
                if not waiting.callers:
                    self._queues.pop(queue, None)

    async def _poll(self, queue: str, waiting: _Waiting, place: str, remaining: float) -> None:
        """Asks once for a job, and for all others of its queue that no poll asks for."""
        places: list[str] = []
        infos: list[JobInfo] = []
        try:
            await self._sender.timing.sleep(min(remaining, GATHERING))
            async with self._change:
                places, longest = waiting.places_to_poll(place)
            [call] = job_calls.jobs(queue, places, round(min(remaining, longest), 3))
            infos = await self._sender.run(call)
        finally:
            async with self._change:
                waiting.polled(places, infos, self._sender.timing.clock())
                self._change.notify()


class _Waiting:
    """The jobs of one queue that callers wait for.

    Attributes:
        callers: Number of callers by job; the ones that polls have asked for come last.
        ended: Jobs that have ended, while somebody waits for them.
    """

    def __init__(self) -> None:
        self.callers: dict[str, int] = {}
        self.ended: dict[str, JobInfo] = {}
        self._polled: set[str] = set()
        self._unfinished: dict[str, float] = {}
        self._polls = 0
        self._gathers = False

    def add(self, place: str) -> None:
        self.callers[place] = self.callers.get(place, 0) + 1

    def remove(self, place: str) -> None:
        self.callers[place] -= 1
        if not self.callers[place]:
            del self.callers[place]
            self.ended.pop(place, None)
            self._unfinished.pop(place, None)

    def begin(self, place: str) -> bool:
        """Returns whether a job's caller is to poll: no poll asks for the job, and few are under way."""
        if self._gathers or self._polls >= len(WAITS) or place in self._polled:
            return False
        self._gathers = True
        return True

    def places_to_poll(self, first: str) -> tuple[list[str], float]:
        """Returns the jobs to ask for, and how long to wait at most."""
        others = (place for place in self.callers if place not in self._polled and place not in self.ended)
        places = list(islice(dict.fromkeys([first, *others]), MAX_JOBS))
        self._polled.update(places)
        longest = WAITS[self._polls]
        self._gathers = False
        self._polls += 1
        return places, longest

    def polled(self, places: list[str], infos: list[JobInfo], now: float) -> None:
        """Records the end of a poll at a time of the clock; without places it failed before."""
        if not places:
            self._gathers = False
            return
        self._polls -= 1
        self._polled.difference_update(places)
        for place, info in zip(places, infos, strict=False):
            if place not in self.callers:
                continue
            if info.status in UNFINISHED:
                self._unfinished[place] = now
                self.callers[place] = self.callers.pop(place)
            else:
                self.ended[place] = job_calls.without_result(info, now - self._unfinished.get(place, -inf))

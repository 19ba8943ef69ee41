# Do not edit: python deploy/unasync.py writes this file from queuey/client/_async/job_results.py.
"""Waiting for the results of jobs. Concurrent callers share one poll."""

from __future__ import annotations

from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from queuey.api.jobs import MAX_JOBS, UNFINISHED
from queuey.client.calls import job_calls
from queuey.client.calls.call import Seconds, location_text, number_text, seconds
from queuey.client.claims.changes import Condition
from queuey.client.errors import ClientError, ResultTimeout
from queuey.client.forks import register_forkable
from queuey.client.http.attempts import within_of

if TYPE_CHECKING:
    from queuey.api.jobs import JobInfo
    from queuey.client._sync.sender import Sender
    from queuey.client.results import Receipt

MAX_POLL_WAITS = (20.0, 5.0, 2.0, 1.0)
"""Max seconds of a poll, by the number of polls already running. A caller whose job no poll covers starts another poll;
at the max number of polls it waits until one ends."""
GATHER_DELAY = 0.005
"""Number of seconds by which a poll is delayed, so that concurrent callers can join it."""


class JobResults:
    """Waits for results of one client's jobs. Safe to use from several threads.

    A caller whose job no poll covers starts a poll for all such jobs of its queue. When a poll ends, another caller
    starts the next one. No task or thread runs in the background.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._change = Condition()
        self.begin_in_child()
        register_forkable(self)

    def begin_in_child(self) -> None:
        self._queues: dict[str, _JobWaiters] = {}

    def bind(self, queue: str, receipts: list[Receipt]) -> list[Receipt]:
        """Makes receipts ask this object for the status and the result of their jobs. Returns them."""
        source = self, queue
        for receipt in receipts:
            receipt.__dict__["source"] = source
        return receipts

    def show(self, queue: str, receipt: Receipt, *, states: bool = False) -> JobInfo:
        [call] = job_calls.jobs(queue, [receipt], states=states)
        [info] = self._sender.run(call)
        return info

    def result(self, queue: str, receipt: Receipt, timeout: Seconds | None) -> Any:  # noqa: ANN401 - any JSON value; part of the API
        """Waits until a job has ended and returns its result. With a timeout of 0, asks once.

        Asks again while the service does not answer, until the timeout; without one, for the policy's deadline.

        Raises:
            ResultTimeout: The job has not ended in time.
            JobError: The job has no result, or its result is not known.
            InvalidArgument: The timeout is not a number.
        """
        clock, location = self._sender.timing.clock, location_text(receipt)
        end = inf if timeout is None else clock() + float(number_text("timeout", seconds(timeout)))
        if end <= clock():
            [call] = job_calls.jobs(queue, [location])
            [info] = self._sender.once.run(call)
            if info.status in UNFINISHED:
                raise ResultTimeout(f"job {location} has not ended")
            return job_calls.read_result(info)
        with self._change:
            waiting = self._queues.setdefault(queue, _JobWaiters())
            waiting.add(location)
        try:
            while True:
                with self._change:
                    while True:
                        if location in waiting.ended:
                            return job_calls.read_result(waiting.ended[location])
                        if (remaining := end - clock()) <= 0:
                            raise ResultTimeout(f"job {location} has not ended in {timeout} s")
                        if waiting.reserve_poll(location):
                            break
                        self._change.wait(remaining)
                self._poll(queue, waiting, location, end)
        finally:
            with self._change:
                waiting.remove(location)
                if not waiting.callers:
                    self._queues.pop(queue, None)

    def _poll(self, queue: str, waiting: _JobWaiters, location: str, end: float) -> None:
        """Polls once for a job, and for all jobs of its queue that no other poll covers.

        First waits :data:`GATHER_DELAY`. At the end, even by an error, records the answer and wakes all callers.
        """
        locations: list[str] = []
        infos: list[JobInfo] = []
        remaining = end - self._sender.timing.clock()
        try:
            self._sender.timing.sleep(min(max(0.0, remaining), GATHER_DELAY))
            with self._change:
                locations, max_wait = waiting.begin_poll(location)
            [call] = job_calls.jobs(queue, locations, round(max(0.0, min(remaining, max_wait)), 3))
            infos = self._sender.run(call, within_of(remaining, call.wait))
        except ClientError as error:
            if self._sender.timing.clock() < end or not error.temporary:
                raise
            raise ResultTimeout(f"job {location} has not ended in time: {error}") from error
        finally:
            with self._change:
                waiting.end_poll(locations, infos, self._sender.timing.clock())
                self._change.notify()


class _JobWaiters:
    """The jobs of one queue that callers wait for.

    Attributes:
        callers: Number of callers by job. Jobs that a poll has found unfinished come last.
        ended: Ended jobs that still have callers.
    """

    def __init__(self) -> None:
        self.callers: dict[str, int] = {}
        self.ended: dict[str, JobInfo] = {}
        self._polled: set[str] = set()
        self._unfinished: dict[str, float] = {}
        self._polls = 0
        self._is_poll_reserved = False

    def add(self, location: str) -> None:
        self.callers[location] = self.callers.get(location, 0) + 1

    def remove(self, location: str) -> None:
        """Removes a caller of a job, and with the last one all that is known of the job."""
        self.callers[location] -= 1
        if not self.callers[location]:
            del self.callers[location]
            self.ended.pop(location, None)
            self._unfinished.pop(location, None)

    def reserve_poll(self, location: str) -> bool:
        """Reserves the next poll for a job's caller. Returns False if a poll covers the job, or no other may start."""
        if self._is_poll_reserved or self._polls >= len(MAX_POLL_WAITS) or location in self._polled:
            return False
        self._is_poll_reserved = True
        return True

    def begin_poll(self, first: str) -> tuple[list[str], float]:
        """Begins the reserved poll. Returns its jobs and its max wait.

        The jobs are ``first`` and all others that have not ended and that no other poll covers, at most ``MAX_JOBS``.
        """
        others = (location for location in self.callers if location not in self._polled and location not in self.ended)
        locations = list(islice(dict.fromkeys([first, *others]), MAX_JOBS))
        self._polled.update(locations)
        max_wait = MAX_POLL_WAITS[self._polls]
        self._is_poll_reserved = False
        self._polls += 1
        return locations, max_wait

    def end_poll(self, locations: list[str], infos: list[JobInfo], now: float) -> None:
        """Records the end of a poll. Answers about jobs that have no callers any more are dropped.

        ``locations`` is empty if the poll failed before it was sent: then only its reservation ends. ``infos`` is empty
        if the poll failed later.
        """
        if not locations:
            self._is_poll_reserved = False
            return
        self._polls -= 1
        self._polled.difference_update(locations)
        for location, info in zip(locations, infos, strict=False):
            if location not in self.callers:
                continue
            if info.status in UNFINISHED:
                self._unfinished[location] = now
                self.callers[location] = self.callers.pop(location)
            else:
                self.ended[location] = job_calls.mark_without_result(info, now - self._unfinished.get(location, -inf))

"""Shares of what a process has: memory, threads, places to wait. Nothing is set aside, and nobody gets everything.

Two small mechanisms, each used by one thread at a time:

* :class:`Room` is for what is held for a while. A holder may take more as long as it holds no more than a multiple of
  what is then left ("dynamic threshold", Choudhury and Hahne 1998, made for the shared memory of switches). One holder
  alone may so take nearly all; with several of them, each gets less; and always something is left for the next.
* :class:`Turns` is for what waits. Who has used least is next, measured in seconds of work or in bytes, so that many or
  long jobs of one holder delay its own jobs and not those of others.

A holder is the name that requests count for: an application's, or one for all callers without a credential.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from queuey.errors import QueueyError, StoreUnavailable, TooManyRequests

NOBODY = ""
"""The holder that all callers without a valid credential are together."""
T = TypeVar("T")


class Room:
    """A quantity that holders share."""

    __slots__ = ("_alpha", "_free", "_held", "total")

    def __init__(self, total: int, alpha: int) -> None:
        """Begins with all of it free.

        Args:
            total: How much there is.
            alpha: A holder may hold so many times what is left. With 2, one alone may take 2/3, two of them 2/5 each.
        """
        self.total = total
        self._alpha = alpha
        self._free = total
        self._held: dict[str, int] = {}

    @property
    def free(self) -> int:
        """What nobody holds; below zero after a :meth:`change` that nobody could refuse."""
        return self._free

    def held(self, holder: str) -> int:
        """Returns what a holder has."""
        return self._held.get(holder, 0)

    def fits(self, holder: str, weight: int) -> bool:
        """Tells whether :meth:`take` would succeed. A holder of nothing may take all that is left."""
        left = self._free - weight
        held = self._held.get(holder, 0)
        return left >= 0 and (not held or held + weight <= self._alpha * left)

    def take(self, holder: str, weight: int) -> bool:
        """Gives a holder more, if that is within its share."""
        fits = self.fits(holder, weight)
        if fits:
            self.change(holder, weight)
        return fits

    def change(self, holder: str, difference: int) -> None:
        """Notes that a holder has more or less than before; it is not asked whether it fits."""
        self._free -= difference
        held = self._held.get(holder, 0) + difference
        if held:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)

    def refusal(self, holder: str, weight: int) -> QueueyError:
        """Returns the error of what did not fit: the holder's own doing if it has most, or that of all."""
        if weight <= self._free or 2 * self.held(holder) > self.total - self._free:
            return TooManyRequests("Too many requests of this application at the same moment; try again.")
        return StoreUnavailable("too many large requests at the same moment")


class Turns(Generic[T]):
    """Jobs that wait, in the order of each holder; whoever has used least is next."""

    __slots__ = ("_jobs", "_now", "_used")

    def __init__(self) -> None:
        self._jobs: dict[str, deque[T]] = {}
        self._used: dict[str, float] = {}
        self._now = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put(self, holder: str, job: T) -> None:
        """Adds a job. Whoever has not waited lately begins where the others are: idling saves nothing up."""
        jobs = self._jobs.get(holder)
        if jobs is None:
            jobs = self._jobs[holder] = deque()
            self._used[holder] = max(self._used.get(holder, 0.0), self._now)
        jobs.append(job)

    def take(self, fits: Callable[[str, T], bool]) -> T | None:
        """Takes the next job out: the first of whoever has used least, of those whose first job fits."""
        found = self.take_with_holder(fits)
        return None if found is None else found[1]

    def take_with_holder(self, fits: Callable[[str, T], bool]) -> tuple[str, T] | None:
        """Is :meth:`take`, and says whose the job is."""
        best: str | None = None
        used = 0.0
        for holder, jobs in self._jobs.items():
            mine = self._used[holder]
            if (best is None or mine < used) and fits(holder, jobs[0]):
                best, used = holder, mine
        if best is None:
            return None
        self._now = max(self._now, used)
        jobs = self._jobs[best]
        job = jobs.popleft()
        if not jobs:
            del self._jobs[best]
        return best, job

    def drop(self, unwanted: Callable[[T], bool]) -> list[tuple[str, T]]:
        """Takes out, from the front of each holder's jobs, those that are not wanted any more; returns them."""
        dropped: list[tuple[str, T]] = []
        for holder, jobs in list(self._jobs.items()):
            while jobs and unwanted(jobs[0]):
                dropped.append((holder, jobs.popleft()))
            if not jobs:
                del self._jobs[holder]
        return dropped

    def charge(self, holder: str, amount: float) -> None:
        """Notes what a job has used, in whatever all are measured in."""
        self._used[holder] = max(self._used.get(holder, 0.0), self._now) + amount

    def forget(self) -> None:
        """Forgets holders that are level with the others again. Is called now and then."""
        for holder in [holder for holder, used in self._used.items() if used <= self._now]:
            if holder not in self._jobs:
                del self._used[holder]

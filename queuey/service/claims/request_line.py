"""The requests that wait for one partition's log. Those that wait at one moment share an entry."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from queuey.claims.drafts import MOST_IDS
from queuey.service.claims.requests import PollRequest, Request, SettleRequest
from queuey.service.claims.runtime import Runtime


class RequestLine:
    """The requests that wait for one log. Any thread may add some; one round at a time takes them.

    Args:
        runtime: Threads and clocks.
        begin: Begins rounds, in a thread of the runtime. They go on until :meth:`take` returns nothing.

    Attributes:
        load: Ids that those who wait and those who are being answered ask for.
    """

    __slots__ = ("_answering", "_begin", "_busy", "_lock", "_runtime", "_waiting", "load")

    def __init__(self, runtime: Runtime, begin: Callable[[], None]) -> None:
        self._runtime = runtime
        self._begin = begin
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()
        self._busy = False
        self.load = self._answering = 0

    @property
    def idle(self) -> bool:
        """Whether no request waits, and none is being answered."""
        return not self._busy

    def add(self, *requests: Request) -> None:
        """Adds requests. Never blocks."""
        now = self._runtime.boottime()
        with self._lock:
            for request in requests:
                request.asked = now
                self._waiting.append(request)
                self.load += request.weight
            if self._busy:
                return
            self._busy = True
        self._runtime.submit(self._begin)

    def take(self) -> list[Request]:
        """Takes requests for one entry, in the order in which they came; none: the log rests."""
        taken: list[Request] = []
        weight = 0
        with self._lock:
            self.load -= self._answering
            while self._waiting and (not taken or weight + self._waiting[0].weight <= MOST_IDS):
                request = self._waiting.popleft()
                if request.answered:
                    self.load -= request.weight
                else:
                    taken.append(request)
                    weight += request.weight
            self._answering = weight
            if not taken:
                self._busy = False
        return taken

    def join(self, taken: list[Request], number: int, *, polls: bool = False) -> None:
        """Takes requests that came meanwhile into the same entry.

        Args:
            taken: What it is for already; they are added to this.
            number: Receipts of entries up to this are taken: they need no reads.
            polls: Take requests for messages, too, which do.
        """
        weight = sum(request.weight for request in taken)
        with self._lock:
            while self._waiting:
                request = self._waiting[0]
                weight += request.weight
                settles = isinstance(request, SettleRequest) and request.newest() <= number
                if weight > MOST_IDS or not (settles or (polls and isinstance(request, PollRequest))):
                    return
                taken.append(self._waiting.popleft())
                self._answering += request.weight

    def waiting(self) -> list[Request]:
        """Returns the requests that no round has taken yet."""
        with self._lock:
            return list(self._waiting)

    def stop(self) -> None:
        """Notes that the rounds have ended by a mistake in the program; the next request begins them again."""
        self._busy = False

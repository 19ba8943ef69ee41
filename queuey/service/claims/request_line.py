"""The requests that wait for one partition's log. Those that wait at one moment share an entry."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from queuey.claims.drafts import MOST_IDS
from queuey.service.claims.requests import PollRequest, Request, SettleRequest


class RequestLine:
    """The requests that wait for one log. Any thread may add some; one round at a time takes them.

    Attributes:
        load: Ids that those who wait and those who are being answered ask for.
    """

    __slots__ = ("_answering", "_busy", "_lock", "_waiting", "load")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()
        self._busy = False
        self.load = self._answering = 0

    @property
    def idle(self) -> bool:
        """Whether no request waits, and none is being answered."""
        return not self._busy

    def add(self, requests: Iterable[Request], now: float) -> bool:
        """Adds requests at a time (boot time); returns whether the log rested, so that its rounds are to begin.

        They go on until :meth:`take` returns nothing.
        """
        with self._lock:
            for request in requests:
                request.asked = now
                self._waiting.append(request)
                self.load += request.weight
            rested, self._busy = not self._busy, True
        return rested

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

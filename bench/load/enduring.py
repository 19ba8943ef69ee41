"""Posts at a given rate, or as fast as answers come, whatever the answers are, in a process of its own.

Run as ``python -m bench.load.enduring``; reads one JSON plan from standard input and writes one JSON result. At a rate,
no request waits for answers to others: one that finds no free connection opens another, and its time counts from the
moment at which it was due. So every request of a second in which the server stands still shows that.
"""

from __future__ import annotations

import re
import select
import time
from collections import deque
from typing import TypedDict

from bench.load.generator import PATIENCE, Connection, Generator, Plan, main

ROOM = 4000
"""Connections at most; beyond that, requests that are due wait."""

_OUTCOME = re.compile(r'"outcome": ?"(\w+)"')


class EnduringPlan(Plan):
    """What to send: ``rate`` requests a second, or 0: one on each of the connections at any time."""

    rate: int


class EnduringResult(TypedDict):
    """What came back: milliseconds of each request by its status, and its outcome if the answer has one."""

    answers: int
    errors: int
    seconds: float
    times: dict[str, list[float]]


class Enduring(Generator):
    """Drives all connections of a plan from one epoll loop, and counts answers of all kinds."""

    def __init__(self, plan: EnduringPlan) -> None:
        super().__init__(plan)
        self.rate = plan["rate"]
        self.free: list[Connection] = []
        self.due: deque[int] = deque()
        self.times: dict[str, list[float]] = {}

    def endure(self) -> EnduringResult:
        """Sends for as long as the plan says, and waits for the answers.

        Raises:
            OSError: Some have not come.
        """
        clock, rate = time.perf_counter_ns, self.rate
        for _ in range(self.plan["connections"]):
            self.open()
        begin, sent = clock(), 0
        end = begin + int(self.plan["seconds"] * 1e9)
        while (now := clock()) < end or self.due or len(self.free) < len(self.connections):
            if now > end + PATIENCE:
                raise OSError(f"{len(self.connections) - len(self.free)} requests have no answer")
            if rate:
                reached = (min(now, end) - begin) * rate // 10**9
                self.due.extend(begin + number * 10**9 // rate for number in range(sent, reached))
                sent = max(sent, reached)
            elif now < end:
                self.due.extend([now] * len(self.free))
            self.send_due()
            for descriptor, event in self.epoll.poll(0.001 if rate else 0.05):
                self.see_to(self.connections[descriptor], event)
        seconds = (clock() - begin) / 1e9
        return {"answers": sum(map(len, self.times.values())), "errors": 0, "seconds": seconds, "times": self.times}

    def open(self) -> None:
        """Opens another connection."""
        connection = Connection(self.plan["port"])
        self.connections[connection.sock.fileno()] = connection
        self.epoll.register(connection.sock.fileno(), select.EPOLLIN)
        self.free.append(connection)

    def send_due(self) -> None:
        """Sends what is due, as far as there are connections."""
        while self.due:
            if not self.free:
                if len(self.connections) >= ROOM:
                    return
                self.open()
            connection = self.free.pop()
            self.send(connection)
            connection.sent_at = self.due.popleft()

    def see_to(self, connection: Connection, event: int) -> None:
        """Goes on with a request, or counts its answer."""
        if event == select.EPOLLOUT:
            self.flush(connection)
        elif self.receive(connection):
            took = (time.perf_counter_ns() - connection.sent_at) / 1e6
            self.times.setdefault(self.kind(), []).append(round(took, 2))
            self.free.append(connection)

    def kind(self) -> str:
        """Returns the status of the last answer, and its outcome."""
        if not self.error:
            return self.status.decode()
        text, self.error = self.error, ""
        outcome = _OUTCOME.search(text)
        return f"{text[9:12]} {outcome[1]}" if outcome else text[9:12]


if __name__ == "__main__":
    main(lambda plan: Enduring(plan).endure())

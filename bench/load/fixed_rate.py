"""Posts at a fixed rate, or as fast as answers come, and counts answers of any status, in its own process.

Run it as ``python -m bench.load.fixed_rate``; it reads one JSON plan from standard input and writes one JSON result. At
a fixed rate, no request waits for the answer to another: if no connection is free, it opens a new one, and its latency
counts from the time at which it was due. So if the server stalls for a second, every request of that second shows it.
"""

from __future__ import annotations

import re
import select
import time
from collections import deque
from typing import TypedDict

from bench.load.generator import FIRST_ANSWER_TIMEOUT_NS, Connection, Generator, Plan, main

MAX_CONNECTIONS = 4000
"""Max connections; beyond that, due requests wait."""

_OUTCOME = re.compile(r'"outcome": ?"(\w+)"')


class FixedRatePlan(Plan):
    """The plan: ``rate`` requests per second; with 0, always one request in flight on each connection."""

    rate: int


class FixedRateResult(TypedDict):
    """The answers; ``times`` has the milliseconds of each request by its status and its outcome, if any."""

    answers: int
    errors: int
    seconds: float
    times: dict[str, list[float]]


class FixedRateGenerator(Generator):
    """Drives all connections of a plan from one epoll loop and counts all answers."""

    def __init__(self, plan: FixedRatePlan) -> None:
        super().__init__(plan)
        self.rate = plan["rate"]
        self.free: list[Connection] = []
        self.due: deque[int] = deque()
        self.times: dict[str, list[float]] = {}

    def run_plan(self) -> FixedRateResult:
        """Sends for the duration of the plan, then waits for the answers.

        Raises:
            OSError: Requests were not answered in time.
        """
        clock, rate = time.perf_counter_ns, self.rate
        for _ in range(self.plan["connections"]):
            self.open_connection()
        begin, sent = clock(), 0
        end = begin + int(self.plan["seconds"] * 1e9)
        while (now := clock()) < end or self.due or len(self.free) < len(self.connections):
            if now > end + FIRST_ANSWER_TIMEOUT_NS:
                raise OSError(f"{len(self.connections) - len(self.free)} requests were not answered in time")
            if rate:
                due_total = (min(now, end) - begin) * rate // 10**9
                self.due.extend(begin + number * 10**9 // rate for number in range(sent, due_total))
                sent = max(sent, due_total)
            elif now < end:
                self.due.extend([now] * len(self.free))
            self.send_due()
            for descriptor, event in self.epoll.poll(0.001 if rate else 0.05):
                self.handle_event(self.connections[descriptor], event)
        seconds = (clock() - begin) / 1e9
        return {"answers": sum(map(len, self.times.values())), "errors": 0, "seconds": seconds, "times": self.times}

    def open_connection(self) -> None:
        connection = Connection(self.plan["port"])
        self.connections[connection.sock.fileno()] = connection
        self.epoll.register(connection.sock.fileno(), select.EPOLLIN)
        self.free.append(connection)

    def send_due(self) -> None:
        """Sends the due requests on free connections, or on new ones up to :data:`MAX_CONNECTIONS`."""
        while self.due:
            if not self.free:
                if len(self.connections) >= MAX_CONNECTIONS:
                    return
                self.open_connection()
            connection = self.free.pop()
            self.send(connection)
            connection.sent_at = self.due.popleft()

    def handle_event(self, connection: Connection, event: int) -> None:
        if event == select.EPOLLOUT:
            self.flush(connection)
        elif self.receive(connection):
            latency_ms = (time.perf_counter_ns() - connection.sent_at) / 1e6
            self.times.setdefault(self.pop_kind(), []).append(round(latency_ms, 2))
            self.free.append(connection)

    def pop_kind(self) -> str:
        """Returns the status of the last answer, with its outcome if it has one, and forgets it."""
        if not self.error:
            return self.status.decode()
        text, self.error = self.error, ""
        outcome = _OUTCOME.search(text)
        return f"{text[9:12]} {outcome[1]}" if outcome else text[9:12]


if __name__ == "__main__":
    main(lambda plan: FixedRateGenerator(plan).run_plan())

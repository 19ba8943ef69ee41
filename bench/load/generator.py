"""The load generator: a closed loop over keep-alive connections, in its own process.

Run it as ``python -m bench.load.generator``; it reads one JSON plan from standard input and writes one JSON result. It
uses raw non-blocking sockets and prebuilt requests. It parses only what it needs to check every status and length, so
that it can saturate any measured server with one core. It imports only the standard library and runs in its own
process, so it shares no interpreter lock, garbage or imports with the measured side.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

COUNTER = b"#######"
"""Placeholder in a request for its number modulo ``numbered``, or that entry of ``order``, if the plan has them."""

FIRST_ANSWER_TIMEOUT_NS = 30_000_000_000
"""Timeout for the first answer of a run, in nanoseconds."""


class Plan(TypedDict):
    """The plan.

    ``requests`` are whole HTTP/1.1 requests as latin-1 text, which are sent in turn. The measured phase begins after
    ``warm`` seconds. It ends after ``seconds`` or, if ``count`` is not zero, after that many answers.
    """

    port: int
    connections: int
    requests: list[str]
    status: int
    warm: float
    seconds: float
    count: int
    numbered: int
    order: list[int]


class Result(TypedDict):
    """The result. Latencies are in milliseconds; ``total`` includes the warm-up, ``answers`` does not."""

    answers: int
    total: int
    errors: int
    error: str
    seconds: float
    received: int
    p50: float
    p90: float
    p99: float
    longest: float


class BadAnswer(Exception):
    """The server sent an unexpected answer, so the run is void."""


class Connection:
    """A connection with at most one request in flight; ``left`` is the number of missing bytes of the answer's body."""

    __slots__ = ("head", "left", "sent_at", "sock", "unsent")

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(0)
        self.head = b""
        self.left = 0
        self.sent_at = 0
        self.unsent = b""


class Generator:
    """Drives all connections of a plan from one epoll loop; each sends its next request after an answer."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.requests = [text.encode("latin-1") for text in plan["requests"]]
        self.status = str(plan["status"]).encode()
        self.epoll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.number = 0
        self.errors = 0
        self.error = ""
        self.received = 0
        self.latencies: list[int] = []

    def run(self) -> Result:
        for _ in range(self.plan["connections"]):
            connection = Connection(self.plan["port"])
            self.connections[connection.sock.fileno()] = connection
            self.epoll.register(connection.sock.fileno(), select.EPOLLIN)
        begin = time.perf_counter_ns()
        for connection in self.connections.values():
            self.send(connection)
        warmed = self.answer_loop(begin + int(self.plan["warm"] * 1e9), 0) if self.plan["warm"] else 0
        self.latencies.clear()
        self.received = 0
        begin = time.perf_counter_ns()
        answers = self.answer_loop(begin + int(self.plan["seconds"] * 1e9), self.plan["count"], FIRST_ANSWER_TIMEOUT_NS)
        seconds = (time.perf_counter_ns() - begin) / 1e9
        for connection in self.connections.values():
            connection.sock.close()
        return self.result(answers, warmed + answers, seconds)

    def answer_loop(self, until: int, count: int, patience: int = 0) -> int:
        """Sends the next request after each answer until the time or count is reached; returns the number of answers.

        A wrong status ends it, too. If no answer has come by ``until``, waits ``patience`` nanoseconds more, because a
        slow server has a low rate.
        """
        poll, connections, clock = self.epoll.poll, self.connections, time.perf_counter_ns
        receive, send, latencies = self.receive, self.send, self.latencies
        answers = 0
        while True:
            for descriptor, event in poll(0.05):
                connection = connections[descriptor]
                if event == select.EPOLLOUT:
                    self.flush(connection)
                elif receive(connection):
                    latencies.append(clock() - connection.sent_at)
                    answers += 1
                    send(connection)
            if (count and answers >= count) or self.errors:
                return answers
            if clock() >= until and (answers or clock() >= until + patience):
                return answers

    def send(self, connection: Connection) -> None:
        """Sends the next request, or as much as the socket takes; :meth:`flush` sends the rest."""
        request = self.requests[self.number % len(self.requests)]
        if self.plan["numbered"]:
            number = self.number % self.plan["numbered"]
            request = request.replace(COUNTER, b"%07d" % (self.plan["order"][number] if self.plan["order"] else number))
        self.number += 1
        connection.sent_at = time.perf_counter_ns()
        try:
            sent = connection.sock.send(request)
        except BlockingIOError:
            sent = 0
        if sent < len(request):
            connection.unsent = request[sent:]
            self.epoll.modify(connection.sock.fileno(), select.EPOLLOUT)

    def flush(self, connection: Connection) -> None:
        connection.unsent = connection.unsent[connection.sock.send(connection.unsent) :]
        if not connection.unsent:
            self.epoll.modify(connection.sock.fileno(), select.EPOLLIN)

    def receive(self, connection: Connection) -> bool:
        """Receives data; returns whether the answer is complete. Another status is counted as an error.

        Raises BadAnswer if the connection was closed before an answer's end, or the head is too long or has no length.
        """
        data = connection.sock.recv(262144)
        if not data:
            raise BadAnswer(f"connection closed, {connection.left} bytes of a body missing: {connection.head[:200]!r}")
        self.received += len(data)
        if connection.left:
            connection.left -= len(data)
            return connection.left == 0
        data = connection.head + data if connection.head else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > 65536:
                raise BadAnswer(f"no header: {data[:200]!r}")
            connection.head = data
            return False
        connection.head = b""
        if data[9:12] != self.status:
            self.errors += 1
            self.error = self.error or data[:600].decode("latin-1")
        connection.left = end + 4 + body_length(data[:end]) - len(data)
        return connection.left == 0

    def result(self, answers: int, total: int, seconds: float) -> Result:
        ordered = sorted(self.latencies) or [0]

        def quantile(part: float) -> float:
            return round(ordered[min(int(len(ordered) * part), len(ordered) - 1)] / 1e6, 3)

        return {
            "answers": answers,
            "total": total,
            "errors": self.errors,
            "error": self.error,
            "seconds": seconds,
            "received": self.received,
            "p50": quantile(0.5),
            "p90": quantile(0.9),
            "p99": quantile(0.99),
            "longest": round(ordered[-1] / 1e6, 3),
        }


def body_length(head: bytes) -> int:
    """Returns the Content-Length of a response head; 0 for 204 without one.

    Raises:
        BadAnswer: The head has no Content-Length.
    """
    start = head.lower().find(b"\r\ncontent-length:")
    if start < 0 and head[9:12] == b"204":
        return 0
    if start < 0:
        raise BadAnswer(f"no content length: {head!r}")
    end = head.find(b"\r\n", start + 2)
    return int(head[start + 17 : end if end > 0 else None])


def main(run_plan: Callable[[Any], Mapping[str, object]]) -> None:
    """Reads the plan from standard input and prints the result; after a bad answer prints the error, exits with 1."""
    plan = json.load(sys.stdin)
    gc.disable()
    try:
        print(json.dumps(run_plan(plan)))
    except (BadAnswer, OSError, KeyError) as error:
        print(json.dumps({"errors": 1, "error": f"{type(error).__name__}: {error}"}))
        sys.exit(1)


if __name__ == "__main__":
    main(lambda plan: Generator(plan).run())

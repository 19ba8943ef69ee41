"""Clients that claim messages and acknowledge them, one cycle after another, in a process of its own.

Run as ``python -m bench.load.cycles``; reads one JSON plan from standard input and writes one JSON result. It is
the load generator with two requests in turn on each connection: the second names the receipts that the first got. Where
the claims are joined, each request names the receipts that the one before it got, and claims the next messages.
"""

from __future__ import annotations

import re
import select
import time
from typing import NotRequired, TypedDict

from bench.load.generator import BadAnswer, Connection, Generator, Result, body_length, main
from bench.load.signing import AccessKey, Signer

IDLE = 20.0
"""Seconds without a message after which there are none left, though there should be."""


class Signed(TypedDict):
    """How a request that ends claims is signed, as SQS has it: by whom, for which action and path."""

    key: AccessKey
    action: str
    path: str


class Dialect(TypedDict):
    """How a server is spoken to.

    ``claim`` is a whole request; ``receipt`` a regular expression, and a pattern of Lua, of what an answer names a
    message by. ``settle`` is a request up to its length, and ``before``, ``each`` (of a number and a receipt) and
    ``after`` make its body. ``last``: ``settle`` claims as well, and the last receipts are settled in this dialect,
    which does not; a receipt that an answer calls superseded is an error. ``signed``: the whole of that request is made
    with its signature, and ``settle`` is not used.
    """

    claim: str
    receipt: str
    settle: str
    before: str
    each: str
    after: str
    last: NotRequired[Dialect]
    signed: NotRequired[Signed]


class CyclePlan(TypedDict):
    """What to do: ``count`` messages in all, over so many ``connections``."""

    port: int
    connections: int
    count: int
    dialect: Dialect


class Cycles(Generator):
    """Drives all connections from one epoll loop; an answer's latency is that of its claim."""

    def __init__(self, plan: CyclePlan) -> None:
        super().__init__(
            {
                "port": plan["port"],
                "connections": plan["connections"],
                "requests": [],
                "status": 200,
                "warm": 0.0,
                "seconds": 0.0,
                "count": 0,
                "numbered": 0,
            }
        )
        self.cycle = plan
        self.bodies: dict[Connection, list[bytes]] = {}
        self.receipts: dict[Connection, list[bytes]] = {}
        self.settled = 0
        self.waiting = plan["connections"]
        self.dialect = plan["dialect"]
        self.joined = "last" in self.dialect
        self.claim = self.dialect["claim"].encode()
        self.receipt = re.compile(self.dialect["receipt"].encode())
        signed = self.dialect.get("signed")
        self.signer = None if signed is None else Signer(signed["key"], signed["action"], signed["path"])

    def settle(self, receipts: list[bytes]) -> bytes:
        """Returns the request that ends claims."""
        dialect = self.dialect.get("last", self.dialect) if self.settled >= self.cycle["count"] else self.dialect
        parts = [dialect["each"] % (number, receipt.decode()) for number, receipt in enumerate(receipts)]
        body = dialect["before"] + ",".join(parts) + dialect["after"]
        if self.signer is not None:
            return self.signer.request(body).encode()
        return f"{dialect['settle']}{len(body)}\r\n\r\n{body}".encode()

    def work(self) -> Result:
        """Works until the messages are done."""
        for _ in range(self.cycle["connections"]):
            connection = Connection(self.cycle["port"])
            self.connections[connection.sock.fileno()] = connection
            self.epoll.register(connection.sock.fileno(), select.EPOLLIN)
        begin = progress = time.perf_counter_ns()
        for connection in self.connections.values():
            self.next_request(connection)
        end = done = 0
        # To the last answer: what is claimed by a caller who has gone nobody can claim in the next run.
        while self.waiting and not self.errors:
            for descriptor, event in self.epoll.poll(0.05):
                connection = self.connections[descriptor]
                if event == select.EPOLLOUT:
                    self.flush(connection)
                elif self.take(connection):
                    progress = time.perf_counter_ns()
            if not end and self.settled >= self.cycle["count"]:
                end, done = time.perf_counter_ns(), self.settled
            if time.perf_counter_ns() - progress > IDLE * 1e9:
                raise BadAnswer(f"only {self.settled} of {self.cycle['count']} messages could be claimed")
        seconds = (end - begin) / 1e9
        for connection in self.connections.values():
            connection.sock.close()
        return self.result(done, done, seconds)

    def next_request(self, connection: Connection) -> None:
        """Sends the acknowledgement of what was claimed, or the next claim if there is something left."""
        receipts = self.receipts.get(connection)
        if not receipts and self.settled >= self.cycle["count"]:
            self.waiting -= 1
            return
        self.requests = [self.settle(receipts) if receipts else self.claim]
        self.bodies[connection] = []
        self.send(connection)

    def take(self, connection: Connection) -> bool:
        """Takes what has arrived; returns whether messages were claimed or settled by it."""
        data = connection.sock.recv(262144)
        self.bodies[connection].append(data)
        whole = b"".join(self.bodies[connection])
        end = whole.find(b"\r\n\r\n")
        if not data:
            raise BadAnswer("connection closed")
        if end < 0 or len(whole) < end + 4 + body_length(whole[:end]):
            return False
        if whole[9:12] != self.status or (self.joined and b'"superseded"' in whole):
            self.errors += 1
            self.error = whole[:600].decode("latin-1")
            return False
        receipts = self.receipts.pop(connection, None)
        if receipts:
            self.settled += len(receipts)
        found: list[bytes] = []
        if self.joined or not receipts:
            self.latencies.append(time.perf_counter_ns() - connection.sent_at)
            found = self.receipts[connection] = self.receipt.findall(whole, end)
        self.next_request(connection)
        return bool(receipts or found)


if __name__ == "__main__":
    main(lambda plan: Cycles(plan).work())

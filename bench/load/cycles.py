"""A load generator that claims and acknowledges messages, one cycle after another, in its own process.

Run it as ``python -m bench.load.cycles``; it reads one JSON plan from standard input and writes one JSON result. Each
connection alternates between two requests: a claim, and an acknowledgement of the receipts that the claim returned.
With joined claims, each request acknowledges the receipts of the previous request and claims the next messages.
"""

from __future__ import annotations

import re
import select
import time
from typing import NotRequired, TypedDict

from bench.load.generator import BadAnswer, Connection, Generator, Result, body_length, main
from bench.load.signing import AccessKey, Signer

MAX_IDLE_SECONDS = 20.0
"""Seconds without a message after which the run fails."""


class Signed(TypedDict):
    """How to sign the acknowledging requests for SQS: the key, the action and the path."""

    key: AccessKey
    action: str
    path: str


class Dialect(TypedDict):
    """The requests of a server's API.

    * ``claim`` is a whole request. ``receipt`` finds the receipts in an answer: a regular expression and a Lua pattern.
    * ``settle`` is the acknowledging request up to the value of its Content-Length. ``before``, ``each``
      (formatted with a number and a receipt) and ``after`` make its body.
    * With ``last``, ``settle`` also claims. The final receipts are then acknowledged in the dialect
      ``last``, whose ``settle`` does not claim, and an answer that calls a receipt superseded is an error.
    * With ``signed``, the signer builds the whole acknowledging request, and ``settle`` is unused.
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
    """The plan: ``count`` messages in all, over this many ``connections``."""

    port: int
    connections: int
    count: int
    dialect: Dialect


class Cycles(Generator):
    """Drives all connections from one epoll loop. Only the latencies of claims are recorded."""

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
                "order": [],
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

    def make_settle_request(self, receipts: list[bytes]) -> bytes:
        """Returns the request that acknowledges these receipts; in the end, the one that claims no more."""
        dialect = self.dialect.get("last", self.dialect) if self.settled >= self.cycle["count"] else self.dialect
        parts = [dialect["each"] % (number, receipt.decode()) for number, receipt in enumerate(receipts)]
        body = dialect["before"] + ",".join(parts) + dialect["after"]
        if self.signer is not None:
            return self.signer.request(body).encode()
        return f"{dialect['settle']}{len(body)}\r\n\r\n{body}".encode()

    def run_cycles(self) -> Result:
        """Claims and acknowledges until all connections have acknowledged all that they claimed.

        The time ends with the last counted acknowledgement. Raises BadAnswer if no message comes for too long.
        """
        for _ in range(self.cycle["connections"]):
            connection = Connection(self.cycle["port"])
            self.connections[connection.sock.fileno()] = connection
            self.epoll.register(connection.sock.fileno(), select.EPOLLIN)
        begin = progress = time.perf_counter_ns()
        for connection in self.connections.values():
            self.next_request(connection)
        end = settled_at_end = 0
        # Wait for the last answer: messages claimed by a closed connection could not be claimed in the next run.
        while self.waiting and not self.errors:
            for descriptor, event in self.epoll.poll(0.05):
                connection = self.connections[descriptor]
                if event == select.EPOLLOUT:
                    self.flush(connection)
                elif self.receive_answer(connection):
                    progress = time.perf_counter_ns()
            if not end and self.settled >= self.cycle["count"]:
                end, settled_at_end = time.perf_counter_ns(), self.settled
            if time.perf_counter_ns() - progress > MAX_IDLE_SECONDS * 1e9:
                raise BadAnswer(f"only {self.settled} of {self.cycle['count']} messages could be claimed")
        seconds = (end - begin) / 1e9
        for connection in self.connections.values():
            connection.sock.close()
        return self.result(settled_at_end, settled_at_end, seconds)

    def next_request(self, connection: Connection) -> None:
        """Sends the acknowledgement of the claimed messages, else the next claim unless enough are acknowledged."""
        receipts = self.receipts.get(connection)
        if not receipts and self.settled >= self.cycle["count"]:
            self.waiting -= 1
            return
        self.requests = [self.make_settle_request(receipts) if receipts else self.claim]
        self.bodies[connection] = []
        self.send(connection)

    def receive_answer(self, connection: Connection) -> bool:
        """Receives data and sends the next request after a complete answer.

        Returns whether the answer claimed or acknowledged messages. A wrong status is counted as an error.
        """
        data = connection.sock.recv(262144)
        self.bodies[connection].append(data)
        answer = b"".join(self.bodies[connection])
        end = answer.find(b"\r\n\r\n")
        if not data:
            raise BadAnswer("connection closed")
        if end < 0 or len(answer) < end + 4 + body_length(answer[:end]):
            return False
        if answer[9:12] != self.status or (self.joined and b'"superseded"' in answer):
            self.errors += 1
            self.error = answer[:600].decode("latin-1")
            return False
        receipts = self.receipts.pop(connection, None)
        if receipts:
            self.settled += len(receipts)
        claimed: list[bytes] = []
        if self.joined or not receipts:
            self.latencies.append(time.perf_counter_ns() - connection.sent_at)
            claimed = self.receipts[connection] = self.receipt.findall(answer, end)
        self.next_request(connection)
        return bool(receipts or claimed)


if __name__ == "__main__":
    main(lambda plan: Cycles(plan).run_cycles())

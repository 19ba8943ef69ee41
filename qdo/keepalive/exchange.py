"""Packets between a program and a server of ZooKeeper: when the latest request was sent that the server has answered.

A session lives on for its timeout from a request, not from the arrival of the answer, which may come late.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator

HEAD = struct.Struct(">iii")
"""The length of a packet, and two numbers: the server's first packet has its version and the timeout in ms, its later
ones the number of the request that they answer, and a part of something else."""
LENGTH = struct.Struct(">i")
EVENT = -1
"""Number of a packet that answers no request."""


class Exchange:
    """The packets of one connection. Each request is answered by one packet, in order.

    Attributes:
        timeout: Seconds, as the server's first packet says; 0: the session has ended; None: it has not come.
    """

    def __init__(self) -> None:
        self.timeout: float | None = None
        self._requests = PacketHeads()
        self._answers = PacketHeads()
        self._unanswered: deque[float] = deque()

    def sent(self, data: bytes | bytearray, instant: float) -> None:
        self._unanswered.extend(instant for _ in self._requests.feed(data))

    def received(self, data: bytes) -> float | None:
        """Returns when the latest request was sent that this answers; None: it answers none."""
        answered = None
        for _, number, timeout in self._answers.feed(data):
            if self.timeout is None:
                self.timeout = max(0, timeout) / 1000
            elif number == EVENT:
                continue
            if self._unanswered:
                answered = self._unanswered.popleft()
        return answered


class PacketHeads:
    """Finds the heads of packets in a stream of bytes."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._rest = 0

    def feed(self, data: bytes | bytearray) -> Iterator[tuple[int, ...]]:
        at = 0
        while at < len(data):
            if self._rest:
                passed = min(self._rest, len(data) - at)
                self._rest -= passed
            else:
                passed = HEAD.size - len(self._head)
                self._head += data[at : at + passed]
                if len(self._head) == HEAD.size:
                    head = HEAD.unpack(self._head)
                    self._head.clear()
                    self._rest = max(0, LENGTH.size + head[0] - HEAD.size)
                    yield head
            at += passed

"""A relay between a program and ZooKeeper.

``python -m qdo.group.zookeeper.relay <program> <vitals> <line> <server> <host>`` starts it.

It forwards data in both directions. If the program has sent nothing for a third of the session timeout, it sends a ping
between two requests. The answers go to the program, which ignores answers to pings that it did not send. It records
when the server was last heard, because a blocked program reads the answers late.

The first line that the program sends holds the TLS settings and the handshake timeout. The first byte that it receives
says that the relay is ready.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import struct
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdo.group.vitals import READY, START_TIMEOUT, Vitals, ignore_signals, now

HEAD = struct.Struct(">iii")
"""The length of a packet, and two numbers. In the server's first packet they are its version and the timeout in ms; in
later ones the first is the number of the answered request, and the second is not used here."""
LENGTH = struct.Struct(">i")
EVENT_NUMBER = -1
"""Number of a packet that is not an answer."""


class PacketExchange:
    """The packets of one connection. Each request is answered by one packet, in order.

    It finds when the latest answered request was sent. A session timeout counts from the request, not from the arrival
    of the answer, which may be late.

    Attributes:
        timeout: The session timeout in seconds from the server's first packet; 0 if the session has ended; None before
            that packet.
    """

    def __init__(self) -> None:
        self.timeout: float | None = None
        self._requests = PacketHeads()
        self._answers = PacketHeads()
        self._unanswered: deque[float] = deque()

    def record_sent(self, data: bytes | bytearray, instant: float) -> None:
        self._unanswered.extend(instant for _ in self._requests.feed(data))

    def record_received(self, data: bytes) -> float | None:
        """Returns when the latest request answered by the data was sent, or None if the data completes no answer."""
        answered = None
        for _, number, timeout in self._answers.feed(data):
            if self.timeout is None:
                self.timeout = max(0, timeout) / 1000
            elif number == EVENT_NUMBER:
                continue
            if self._unanswered:
                answered = self._unanswered.popleft()
        return answered


class PacketHeads:
    """Finds the packet heads in a stream of bytes. A head that arrives in pieces is yielded when it is complete."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._rest = 0

    def feed(self, data: bytes | bytearray) -> Iterator[tuple[int, ...]]:
        position = 0
        while position < len(data):
            if self._rest:
                count = min(self._rest, len(data) - position)
                self._rest -= count
            else:
                count = HEAD.size - len(self._head)
                self._head += data[position : position + count]
                if len(self._head) == HEAD.size:
                    head = HEAD.unpack(self._head)
                    self._head.clear()
                    self._rest = max(0, LENGTH.size + head[0] - HEAD.size)
                    yield head
            position += count


PING = struct.pack(">iii", 8, -2, 11)
MAX_READ_BYTES = 65_536
PINGS_PER_SESSION = 3
CHECK_INTERVAL = 1.0
"""Interval between two checks before the session begins, in seconds."""
WOULD_BLOCK_ERRORS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True)
class Encryption:
    """The TLS settings of a connection.

    Attributes:
        ca: Certificates of the only trusted authorities, or None for those that the machine trusts.
        cert: The program's own certificate, if the servers require one.
        key: The key of ``cert``, or None if it is in the same file.
        password: The password of the key.
        check_hostname: Whether the servers' certificates must name the host.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Returns a TLS context.

        Raises:
            OSError: A file is missing or invalid.
            ValueError: A setting is invalid.
        """
        context = ssl.create_default_context(cafile=self.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key, self.password or "")
        return context


def start_relay(
    vitals: Vitals, server: socket.socket, host: str, encryption: Encryption | None, patience: float = START_TIMEOUT
) -> socket.socket:
    """Starts a relay between this program and its server; returns the socket to use now.

    The relay owns ``server`` from now on. ``host`` is the name in the server's certificate, ``patience`` the timeout of
    the TLS handshake in seconds.

    Raises:
        OSError: The server is not trusted, or the relay did not start.
    """
    with server:
        channel = vitals.start_helper(__name__, host, give=(server.fileno(),))
    try:
        channel.settimeout(START_TIMEOUT)
        channel.sendall(json.dumps([encryption and vars(encryption), patience], default=_absolute).encode() + b"\n")
        reply = channel.recv(MAX_READ_BYTES)
    except BaseException:
        channel.close()
        raise
    if reply != READY:
        channel.close()
        raise ConnectionRefusedError(reply.decode() or "the relay process ended")
    return channel


def _absolute(path: Path) -> str:
    return str(path.absolute())


class Relay:
    """Forwards bytes between the sockets of a program and its server."""

    def __init__(self, vitals: Vitals, program: socket.socket, server: socket.socket) -> None:
        self._vitals = vitals
        self._program = program
        self._server = server
        self._requests = bytearray()
        """The start of an incomplete request."""
        self._out: dict[socket.socket, bytearray] = {program: bytearray(), server: bytearray()}
        self._exchange = PacketExchange()
        self._timeout: float | None = None
        self._last_sent = now()

    def run(self) -> None:
        """Runs until either socket is closed, or the server is heard only after the session timeout."""
        while True:
            self._ping_if_idle()
            readable, writable = self._wait_for_sockets()
            if self._program in readable and not self._forward_requests():
                return
            if self._server in readable and not self._forward_answers():
                return
            for end in writable:
                self._send_pending(end)

    def _wait_for_sockets(self) -> tuple[list[socket.socket], list[socket.socket]]:
        wait = (
            CHECK_INTERVAL
            if self._timeout is None
            else max(0.0, self._last_sent + self._timeout / PINGS_PER_SESSION - now())
        )
        poll = select.poll()
        for end, data in self._out.items():
            poll.register(end, select.POLLIN | (select.POLLOUT if data else 0))
        events = dict(poll.poll(wait * 1000 + 1))
        readable = [e for e in self._out if events.get(e.fileno(), 0) & ~select.POLLOUT]
        return readable, [e for e in self._out if events.get(e.fileno(), 0) & select.POLLOUT]

    def _ping_if_idle(self) -> None:
        if self._timeout is None or now() - self._last_sent < self._timeout / PINGS_PER_SESSION:
            return
        self._last_sent = now()
        if self._vitals.running:
            self._out[self._server] += PING
            self._send_pending(self._server)

    def _forward_requests(self) -> bool:
        data = self._receive(self._program)
        if data is None:
            return False
        self._requests += data
        end = 0
        while len(self._requests) >= end + LENGTH.size:
            following = end + LENGTH.size + LENGTH.unpack_from(self._requests, end)[0]
            if following > len(self._requests):
                break
            end = following
        if end:
            self._out[self._server] += self._requests[:end]
            del self._requests[:end]
            self._last_sent = now()
            self._send_pending(self._server)
        return True

    def _forward_answers(self) -> bool:
        data = self._receive(self._server)
        if data is None:
            return False
        if data and not self._record_answer(data):
            return False
        self._out[self._program] += data
        self._send_pending(self._program)
        return True

    def _record_answer(self, data: bytes) -> bool:
        answered = self._exchange.record_received(data)
        if answered is None or not self._exchange.timeout:
            return True  # a timeout of 0 means that the session has ended: the program reads that and closes
        self._timeout, before = self._exchange.timeout, self._vitals.last_heard or answered
        lapsed = now() - before > self._timeout
        self._vitals.record_answer(max(answered, before), lapsed=lapsed)
        return not lapsed

    @staticmethod
    def _receive(end: socket.socket) -> bytes | None:
        """Returns all data that has arrived, including what TLS has read ahead; None at the end or after an error."""
        received = bytearray()
        try:
            while data := end.recv(MAX_READ_BYTES):
                received += data
        except WOULD_BLOCK_ERRORS:
            return bytes(received)
        except OSError:
            """Return the data that came before; the next call gets the error again."""
        return bytes(received) or None

    def _send_pending(self, end: socket.socket) -> None:
        data = self._out[end]
        while data:
            instant = now()
            try:
                count = end.send(data)
                if end is self._server:
                    self._exchange.record_sent(data[:count], instant)
                del data[:count]
            except WOULD_BLOCK_ERRORS:
                return
            except OSError:
                data.clear()


def main(program: str, vitals: str, line: str, server: str, host: str) -> None:
    ignore_signals()
    with socket.socket(fileno=int(line)) as channel, socket.socket(fileno=int(server)) as connection:
        channel.settimeout(START_TIMEOUT)
        with channel.makefile("rb") as lines:
            settings = lines.readline()
        if not settings:
            return
        encryption: dict[str, Any] | None
        encryption, patience = json.loads(settings)
        connection.settimeout(patience)
        end: socket.socket = connection
        try:
            if encryption is not None:
                end = Encryption(**encryption).context().wrap_socket(connection, server_hostname=host)
        except (OSError, ValueError) as error:
            channel.sendall(str(error).encode())
            return
        with end:
            channel.sendall(READY)
            channel.settimeout(0.0)
            end.settimeout(0.0)
            Relay(Vitals(int(vitals), int(program)), channel, end).run()


if __name__ == "__main__":
    main(*sys.argv[1:])

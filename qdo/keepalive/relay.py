"""``python -m qdo.keepalive.relay <program> <vitals> <line> <server> <host>``: between a program and ZooKeeper.

It hands on what either says. When the program has said nothing for a third of the session's time it says in its place
that the session is alive, between two requests; the answers go to the program, which passes over those that it did not
ask for. It notes when the server was heard, for a program that was held up reads that late.

The first line that the program sends holds the settings for TLS and the time for it; the first byte that it gets says
that it may begin.
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

from qdo.keepalive.vitals import BEGINNING, READY, Vitals, ignore_signals, now

HEAD = struct.Struct(">iii")
"""The length of a packet, and two numbers: the server's first packet has its version and the timeout in ms, its later
ones the number of the request that they answer, and a part of something else."""
LENGTH = struct.Struct(">i")
EVENT = -1
"""Number of a packet that answers no request."""


class Exchange:
    """The packets of one connection. Each request is answered by one packet, in order.

    It finds out when the latest request was sent that the server has answered: a session lives on for its timeout from
    a request, not from the arrival of the answer, which may come late.

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


PING = struct.pack(">iii", 8, -2, 11)
PIECE = 65_536
BEATS = 3
"""Number of pings in the time of a session."""
IMPATIENT = 1.0
"""Interval between two checks while nothing is sent and no session has begun, in seconds."""
AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True)
class Encryption:
    """The encryption of a connection.

    Attributes:
        ca: Certificates of the authorities to trust, and no others; None: those that the machine trusts.
        cert: The program's own certificate, if the servers ask for one.
        key: Its key; None: it is in the same file.
        password: Of the key.
        check_hostname: The servers' certificates must name the host.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises OSError or ValueError if a file is missing or invalid."""
        context = ssl.create_default_context(cafile=self.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key, self.password or "")
        return context


def begin(
    vitals: Vitals, server: socket.socket, host: str, encryption: Encryption | None, patience: float = BEGINNING
) -> socket.socket:
    """Puts a process between this program and its server; returns the socket to use now.

    The process owns ``server`` from now on. ``host`` is the name in the server's certificate, ``patience`` the timeout
    of the handshake in seconds.

    Raises:
        OSError: The server is not to be trusted, or the process did not begin.
    """
    with server:
        ours = vitals.start(__name__, host, give=(server.fileno(),))
    try:
        ours.settimeout(BEGINNING)
        ours.sendall(json.dumps([encryption and vars(encryption), patience], default=_absolute).encode() + b"\n")
        said = ours.recv(PIECE)
    except BaseException:
        ours.close()
        raise
    if said != READY:
        ours.close()
        raise ConnectionRefusedError(said.decode() or "the process that talks to the server ended")
    return ours


def _absolute(path: Path) -> str:
    return str(path.absolute())


class Relay:
    """Passes bytes on between the sockets of a program and its server."""

    def __init__(self, vitals: Vitals, program: socket.socket, server: socket.socket) -> None:
        self._vitals = vitals
        self._program = program
        self._server = server
        self._requests = bytearray()
        """The beginning of a request that is not complete yet."""
        self._out: dict[socket.socket, bytearray] = {program: bytearray(), server: bytearray()}
        self._exchange = Exchange()
        self._timeout: float | None = None
        self._said = now()

    def run(self) -> None:
        """Ends when either socket is closed, or when the session's time was over before the server was heard."""
        while True:
            self._ping_if_idle()
            readable, writable = self._wait()
            if self._program in readable and not self._request():
                return
            if self._server in readable and not self._answer():
                return
            for each in writable:
                self._send(each)

    def _wait(self) -> tuple[list[socket.socket], list[socket.socket]]:
        wait = IMPATIENT if self._timeout is None else max(0.0, self._said + self._timeout / BEATS - now())
        poll = select.poll()
        for end, data in self._out.items():
            poll.register(end, select.POLLIN | (select.POLLOUT if data else 0))
        found = dict(poll.poll(wait * 1000 + 1))
        readable = [each for each in self._out if found.get(each.fileno(), 0) & ~select.POLLOUT]
        return readable, [each for each in self._out if found.get(each.fileno(), 0) & select.POLLOUT]

    def _ping_if_idle(self) -> None:
        """Sends a ping if the program has sent nothing for long because it is held up."""
        if self._timeout is None or now() - self._said < self._timeout / BEATS:
            return
        self._said = now()
        if self._vitals.running:
            self._out[self._server] += PING
            self._send(self._server)

    def _request(self) -> bool:
        """Passes on whole requests of the program; returns False at its end."""
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
            self._said = now()
            self._send(self._server)
        return True

    def _answer(self) -> bool:
        """Passes on the server's answers; returns False when nothing more is to come of it."""
        data = self._receive(self._server)
        if data is None:
            return False
        if data and not self._server_heard(data):
            return False
        self._out[self._program] += data
        self._send(self._program)
        return True

    def _server_heard(self, data: bytes) -> bool:
        """Records that the server was heard; returns False if that was too late."""
        answered = self._exchange.received(data)
        if answered is None or not self._exchange.timeout:
            return True  # without a timeout the session has ended: the program reads it and closes
        self._timeout, before = self._exchange.timeout, self._vitals.last_heard or answered
        lapsed = now() - before > self._timeout
        self._vitals.heard(max(answered, before), lapsed=lapsed)
        return not lapsed

    @staticmethod
    def _receive(end: socket.socket) -> bytes | None:
        """Returns everything that has arrived, encryption's read-ahead included; None at the end or after an error."""
        found = bytearray()
        try:
            while data := end.recv(PIECE):
                found += data
        except AGAIN:
            return bytes(found)
        except OSError:
            """What came before counts; the next call meets with the same."""
        return bytes(found) or None

    def _send(self, end: socket.socket) -> None:
        """Sends as much as possible now; a closed socket shows when it is read."""
        data = self._out[end]
        while data:
            instant = now()
            try:
                count = end.send(data)
                if end is self._server:
                    self._exchange.sent(data[:count], instant)
                del data[:count]
            except AGAIN:
                return
            except OSError:
                data.clear()


def main(program: str, vitals: str, line: str, server: str, host: str) -> None:
    ignore_signals()
    with socket.socket(fileno=int(line)) as talk, socket.socket(fileno=int(server)) as connection:
        talk.settimeout(BEGINNING)
        with talk.makefile("rb") as lines:
            said = lines.readline()
        if not said:
            return
        encryption: dict[str, Any] | None
        encryption, patience = json.loads(said)
        connection.settimeout(patience)
        end: socket.socket = connection
        try:
            if encryption is not None:
                end = Encryption(**encryption).context().wrap_socket(connection, server_hostname=host)
        except (OSError, ValueError) as error:
            talk.sendall(str(error).encode())
            return
        with end:
            talk.sendall(READY)
            talk.settimeout(0.0)
            end.settimeout(0.0)
            Relay(Vitals(int(vitals), int(program)), talk, end).run()


if __name__ == "__main__":
    main(*sys.argv[1:])

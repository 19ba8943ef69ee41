"""The counts that the workers of one service exchange, so that a scrape of any of them shows all.

Each listens at its own name in Linux' abstract namespace, where nothing is left behind when it dies, and sends its
counts to each process that connects. The kernel reports the user of the other process: only processes of the same user
are answered.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from queuey.metrics import Snapshot, Workers

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
"""How long a scrape waits for all other workers together."""
REBIND_SECONDS = 0.1
"""Between attempts to take a name that the worker before has not given up yet."""
_CREDENTIALS = struct.Struct("3i")
_PIECE = 1 << 16

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode


class WorkerIdentity(NamedTuple):
    """The number of a worker among those of its service.

    Attributes:
        service: Names the service; no other one has the same.
        total: How many workers there are.
        number: Of this one, from 1.
    """

    service: str
    total: int
    number: int = 0

    @classmethod
    def of_service(cls, total: int) -> WorkerIdentity:
        """Returns what all workers of a new service have in common."""
        return cls(secrets.token_hex(16), total)

    def address(self, number: int) -> str:
        """Returns where a worker listens."""
        return f"\0queuey-{self.service}-{number}"


class Told:
    """What all workers of the service have counted.

    Args:
        own: Returns what this worker has counted.
    """

    def __init__(self, own: Callable[[], Snapshot]) -> None:
        self._own = own
        self._identity = WorkerIdentity("", 1)

    def join(self, identity: WorkerIdentity) -> None:
        """Takes an identity among the workers, and starts a thread that answers the others. It never ends."""
        self._identity = identity
        if identity.total > 1:
            threading.Thread(target=self._tell, name="queuey-workers", daemon=True).start()

    def all(self) -> Workers:
        """Asks all workers; one that does not answer in time has None."""
        identity = self._identity
        if identity.total == 1:
            return {"": self._own()}
        found: dict[str, Snapshot | None] = dict.fromkeys(map(str, range(1, identity.total + 1)))
        with contextlib.ExitStack() as stack:
            asked = []
            for number in range(1, identity.total + 1):
                peer = None if number == identity.number else _connect(identity.address(number))
                if peer is not None:
                    asked.append((number, stack.enter_context(peer)))
            found[str(identity.number)] = self._own()
            until = time.monotonic() + ANSWER_SECONDS
            for number, peer in asked:
                found[str(number)] = _hear(peer, until)
        return found

    def _tell(self) -> None:
        """Answers the workers that connect."""
        with socket.socket(socket.AF_UNIX) as listener:
            while True:
                try:
                    listener.bind(self._identity.address(self._identity.number))
                    break
                except OSError:
                    time.sleep(REBIND_SECONDS)
            listener.listen()
            while True:
                try:
                    peer, _ = listener.accept()
                    with peer:
                        if _is_ours(peer):
                            peer.settimeout(ANSWER_SECONDS)
                            peer.sendall(_encode(self._own()))
                except OSError as error:
                    log.debug("Another worker process could not be notified: %s", error)


def _connect(address: str) -> socket.socket | None:
    """Asks a worker; returns None if there is none."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(ANSWER_SECONDS)
    try:
        peer.connect(address)
    except OSError:
        peer.close()
        return None
    return peer


def _hear(peer: socket.socket, until: float) -> Snapshot | None:
    """Reads a worker's answer; returns None if it does not come in time."""
    pieces: list[bytes] = []
    try:
        if not _is_ours(peer):
            return None
        while True:
            peer.settimeout(max(0.001, until - time.monotonic()))
            piece = peer.recv(_PIECE)
            if not piece:
                return _decode(b"".join(pieces))
            pieces.append(piece)
    except (OSError, msgspec.DecodeError):
        return None


def _is_ours(peer: socket.socket) -> bool:
    """Returns whether a process of this user is at the other end."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(credentials)[1]
    return user == os.geteuid()

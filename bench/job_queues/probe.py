"""What the jobs do, in every system: next to nothing, but they tell the process that sent them."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Callable, Mapping

HOST = "127.0.0.1"
SHAPE = struct.Struct("d")
_SOCKET = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
_NUMBERS = itertools.count(1)


def counted(port: int, total: int) -> None:
    """Counts itself; the first job of a worker and the last of so many tell when they began."""
    number = next(_NUMBERS)
    if number in {1, total}:
        tell(port, time.monotonic())


def timed(port: int, sent: float) -> None:
    """Tells how many seconds ago it was sent: the clock is that of the machine."""
    tell(port, time.monotonic() - sent)


TASKS: Mapping[str, Callable[..., None]] = {"counted": counted, "timed": timed}


def tell(port: int, value: float) -> None:
    """Sends a number to a process of this machine."""
    _SOCKET.sendto(SHAPE.pack(value), (HOST, port))


class Ear:
    """Where jobs tell something; ``port`` says which one it is."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((HOST, 0))
        self.port: int = self._socket.getsockname()[1]

    def hear(self, seconds: float) -> float:
        """Waits for a number; after so many seconds without one there is a TimeoutError."""
        self._socket.settimeout(seconds)
        value: float = SHAPE.unpack(self._socket.recv(SHAPE.size))[0]
        return value

    def close(self) -> None:
        """Hears nothing more."""
        self._socket.close()

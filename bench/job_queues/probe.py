"""The tasks, the same in every system: they only report to the process that sent them, by UDP."""

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


def count_run(port: int, total: int) -> None:
    """Counts its runs in this worker; the first run and run number ``total`` report the time at which they began."""
    number = next(_NUMBERS)
    if number in {1, total}:
        send_number(port, time.monotonic())


def report_delay(port: int, sent: float) -> None:
    """Reports the seconds since it was sent. The monotonic clock is shared by all processes of a machine."""
    send_number(port, time.monotonic() - sent)


TASKS: Mapping[str, Callable[..., None]] = {"counted": count_run, "timed": report_delay}


def send_number(port: int, value: float) -> None:
    _SOCKET.sendto(SHAPE.pack(value), (HOST, port))


class Receiver:
    """Receives the numbers that tasks report to its ``port``."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((HOST, 0))
        self.port: int = self._socket.getsockname()[1]

    def receive(self, seconds: float) -> float:
        """Waits for the next number.

        Raises:
            TimeoutError: No number arrived in time.
        """
        self._socket.settimeout(seconds)
        value: float = SHAPE.unpack(self._socket.recv(SHAPE.size))[0]
        return value

    def close(self) -> None:
        self._socket.close()

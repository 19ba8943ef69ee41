"""How processes wake each other: a datagram socket for each session, beside the file.

A datagram only means "check the file". A lost one only costs time: processes also check at each sign of life. The
kernel refuses datagrams to a socket whose process has ended, so other processes also learn that it was killed, long
before its sessions expire.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path

LONGEST = 100
"""Max bytes of a path that a socket's address can hold on every system."""
OLD = 60.0
"""Min seconds of age of a socket that refuses for it to count as left behind, not as just being made."""


class WakeupSocket:
    """One session's socket.

    Attributes:
        name: Its name, unlike any other.
        socket: Becomes readable when a datagram comes; None: there can be no socket here.
    """

    def __init__(self, file: Path, name: str) -> None:
        self.name = name
        self._directory = file.with_name(f"{file.name}-bells")
        self._handle: int | None = None
        self.socket: socket.socket | None = None

    def open(self) -> None:
        """Makes the socket, if that is possible here, and removes those that dead processes have left."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            with contextlib.suppress(OSError, AttributeError):
                self._directory.mkdir(mode=0o700, exist_ok=True)
                self._handle = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
                self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self.socket.settimeout(0.0)
                self.socket.bind(self._address(self.name))
                (self._directory / self.name).chmod(0o600)
                undo.pop_all()
                self._sweep()

    def ring(self, names: Iterable[str]) -> None:
        """Wakes other sessions; never waits and never fails."""
        if self.socket is None:
            return
        for name in names:
            with contextlib.suppress(OSError):  # one that does not listen any more, or that has enough to read
                self.socket.sendto(b"", self._address(name))

    def hush(self) -> bool:
        """Drains the socket; returns whether anything arrived."""
        rung = False
        with contextlib.suppress(OSError):
            while self.socket is not None:
                self.socket.recv(1)
                rung = True
        return rung

    def silent(self, names: Iterable[str]) -> list[str]:
        """Returns those of other sessions whose process has certainly ended."""
        return [name for name in names if self._refuses(name)]

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._directory / name).unlink()

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            self.remove(self.name)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _address(self, name: str) -> str:
        """Returns where a socket is, by way of the open directory when the path is too long for an address."""
        path = str(self._directory / name)
        return path if len(os.fsencode(path)) <= LONGEST else f"/proc/self/fd/{self._handle}/{name}"

    def _refuses(self, name: str) -> bool:
        if self.socket is None:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                probe.settimeout(0.0)
                probe.connect(self._address(name))
        except ConnectionRefusedError:
            return True
        except OSError:  # nothing is known of it, perhaps because this process may open no more files
            return False
        return False

    def _sweep(self) -> None:
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > OLD and self._refuses(entry.name):
                        self.remove(entry.name)

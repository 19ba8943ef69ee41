"""Keeps runs that write to one archive apart, by an entry of the store's ledger.

::

    free ──take──▶ held ──renew, every third of its time──▶ held
      ▲             │
      └─── given back; its process is gone; or not renewed in its time: the run was killed elsewhere, or stood still

A run must be sure that it holds the lease before it replaces anything: it counts the time from before it asked for it,
less a margin, so that clocks may differ by that much.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

import msgspec

from queuey import ids
from queuey.errors import QueueyError
from queuey.storage import Ledger, bridge, exchange

LEASE_TIMEOUT = 60.0
"""Timeout of a lease without renewal, in seconds."""
_MAX_CLOCK_DIFFERENCE = 0.25
"""Max difference of clocks, as a part of that time."""


class ArchiveBusy(QueueyError):
    """Another run writes to the archive, or has taken it over from this one."""

    code = "ArchiveBusy"


class _LeaseEntry(msgspec.Struct, frozen=True):
    """Entry of the ledger.

    Attributes:
        run: Which run has it.
        host, pid: Where that runs.
        processes: Which processes the pid is one of; empty: unknown.
        since, until: Ticks; until 0: it was given back.
    """

    run: str
    host: str
    pid: int
    processes: str
    since: int
    until: int

    def ended(self, now: int) -> bool:
        """Returns whether the lease is free: released, expired, or held by a process that has ended."""
        return self.until <= now or (self.processes != "" and self.processes == _processes() and not _runs(self.pid))


class ArchiveLease:
    """The right to write to an archive; a context manager that holds and renews it.

    Args:
        ledger: Of the store.
        archive: The archive, as a URL.
        seconds: How long it lasts without being renewed.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        archive: str,
        *,
        seconds: float = LEASE_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._archive = archive
        self._work = f"archive lease {sha256(archive.encode()).hexdigest()}"
        self._seconds = seconds
        self._clock = clock
        self._run = secrets.token_hex(8)
        self._since = 0
        self._raw: bytes | None = None
        self._asked = 0.0
        self._lock = Lock()
        self._ended = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        self.take()
        self._ended.clear()
        self._thread = Thread(target=self._keep, name="archive lease", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.give_back()

    def take(self) -> None:
        """Acquires the lease.

        Raises:
            ArchiveBusy: Another run has it; says which, since when, and until when at most.
        """
        self._since = bridge.run(self._ledger.now())
        while True:
            raw = bridge.run(self._ledger.entry(self._work, 0))
            if raw is not None:
                found = msgspec.json.decode(raw, type=_LeaseEntry)
                if found.run != self._run and not found.ended(bridge.run(self._ledger.now())):
                    raise ArchiveBusy(self._who_has_it(found))
            if self._enter(raw):
                return

    def renew(self) -> None:
        """Extends the lease.

        Raises:
            ArchiveBusy: It has ended meanwhile, and another run has taken it.
        """
        with self._lock:
            held = self._enter(self._raw)
        if not held:
            raise ArchiveBusy(f"{self._archive}: the lease of this run has ended, and another run has taken it.")

    def check(self) -> None:
        """Raises unless the lease is certainly held; called before a file is replaced.

        Raises:
            ArchiveBusy: That is not certain.
        """
        if self._clock() - self._asked >= self._seconds * (1 - _MAX_CLOCK_DIFFERENCE):
            self.renew()

    def give_back(self) -> None:
        """Releases the lease. If that fails, it expires."""
        with suppress(QueueyError), self._lock:
            self._enter(self._raw, until=0)

    def _enter(self, expected: bytes | None, *, until: int | None = None) -> bool:
        asked = self._clock()
        if until is None:
            until = bridge.run(self._ledger.now()) + round(self._seconds * ids.TICKS_PER_SECOND)
        wanted = msgspec.json.encode(
            _LeaseEntry(self._run, socket.gethostname(), os.getpid(), _processes(), self._since, until)
        )
        found = None
        while found != wanted:
            found = bridge.run(exchange(self._ledger, self._work, 0, wanted, expected=expected))
            if found is None:  # the entry has expired: it was unused for a month
                return False
            if found != wanted and msgspec.json.decode(found, type=_LeaseEntry).run != self._run:
                return False
            expected = found  # one of ours whose answer was lost
        self._raw, self._asked = wanted, asked
        return True

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / 3):
            try:
                self.renew()
            except QueueyError:
                continue  # the store may be back in time; before anything is replaced check() asks again

    def _who_has_it(self, found: _LeaseEntry) -> str:
        who = f"process {found.pid} on {found.host}, since {_time(found.since)}"
        wait = f"Wait for its end; if it was killed, its lease ends at {_time(found.until)}."
        return f"{self._archive} is written by another run: {who}. {wait}"


def _processes() -> str:
    """Names the process namespace of this process: one boot of one machine, or of one container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _time(ticks: int) -> str:
    return datetime.fromtimestamp(ids.ticks_to_seconds(ticks), UTC).isoformat(" ", "seconds").replace("+00:00", "Z")

"""Excludes concurrent runs that write to one archive, by a lease in the store's ledger.

::

    free ──take──▶ held ──renew, every third of its timeout──▶ held
      ▲             │
      └─── given back; its process has ended; or timed out: the run was killed on another machine, or was paused

A run must be sure that it holds the lease before it replaces anything. So it counts the timeout from before its
request, less a margin for differences between clocks.
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

from queuey.model import ids
from queuey.model.errors import QueueyError
from queuey.storage import Entry, Ledger, bridge

LEASE_TIMEOUT = 60.0
"""Timeout of a lease that is not renewed, in seconds."""
_MAX_CLOCK_DIFFERENCE = 0.25
"""Max difference of clocks, as a fraction of the timeout."""


class ArchiveBusy(QueueyError):
    """Another run writes to the archive, or has taken over the lease of this run."""


class _LeaseEntry(msgspec.Struct, frozen=True):
    """Ledger entry of a lease.

    Attributes:
        run: The run that holds it.
        host, pid: Machine and process of the run.
        processes: The process namespace of the pid; empty if unknown.
        since, until: When the lease was acquired, and when it ends, in ticks; ``until`` is 0 if it was given back.
    """

    run: str
    host: str
    pid: int
    processes: str
    since: int
    until: int

    def is_free(self, now: int) -> bool:
        """True if released, expired, or held by an ended process of this process namespace."""
        return self.until <= now or (
            self.processes != "" and self.processes == _process_namespace() and not _is_running(self.pid)
        )


class ArchiveLease:
    """The exclusive right to write to an archive; a context manager that holds and renews it.

    Args:
        ledger: The store's ledger.
        archive: URL of the archive.
        seconds: Timeout without renewal.
        clock: A monotonic clock in seconds.
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
        self._requested_at = 0.0
        self._lock = Lock()
        self._ended = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        self.acquire()
        self._ended.clear()
        self._thread = Thread(target=self._renew_until_exit, name="archive lease", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.release()

    def acquire(self) -> None:
        """Acquires the lease.

        Raises:
            ArchiveBusy: Another run has it. The message names its process, host, start and the end of its lease.
        """
        self._since = bridge.run(self._ledger.now())
        while True:
            raw = bridge.run(self._ledger.entry(self._work, 0))
            if raw is not None:
                entry = msgspec.json.decode(raw, type=_LeaseEntry)
                if entry.run != self._run and not entry.is_free(bridge.run(self._ledger.now())):
                    raise ArchiveBusy(self._holder_text(entry))
            if self._set_entry(raw):
                return

    def renew(self) -> None:
        """Extends the lease.

        Raises:
            ArchiveBusy: The lease has ended meanwhile, and another run has taken it.
        """
        with self._lock:
            held = self._set_entry(self._raw)
        if not held:
            raise ArchiveBusy(f"{self._archive}: the lease of this run has ended, and another run has taken it.")

    def ensure_held(self) -> None:
        """Makes sure that the lease is held, and renews it if it is about to end. Call it before replacing a file.

        Raises:
            ArchiveBusy: Another run has taken the lease.
        """
        if self._clock() - self._requested_at >= self._seconds * (1 - _MAX_CLOCK_DIFFERENCE):
            self.renew()

    def release(self) -> None:
        with suppress(QueueyError), self._lock:
            self._set_entry(self._raw, until=0)

    def _set_entry(self, expected: bytes | None, *, until: int | None = None) -> bool:
        """Replaces the ledger entry ``expected`` by one of this run; returns False if another run holds the lease.

        The timeout begins now, unless ``until`` is given in ticks.
        """
        requested_at = self._clock()
        if until is None:
            until = bridge.run(self._ledger.now()) + round(self._seconds * ids.TICKS_PER_SECOND)
        value = msgspec.json.encode(
            _LeaseEntry(self._run, socket.gethostname(), os.getpid(), _process_namespace(), self._since, until)
        )

        def decide(present: bytes | None) -> Entry | None:
            # An entry of this run may be one whose answer was lost.
            is_own = present is not None and msgspec.json.decode(present, type=_LeaseEntry).run == self._run
            return Entry(value) if is_own or present == expected else None

        if bridge.run(self._ledger.change(self._work, 0, decide)) != value:
            return False
        self._raw, self._requested_at = value, requested_at
        return True

    def _renew_until_exit(self) -> None:
        """Renews the lease every third of its timeout until the block is left; ignores failures."""
        while not self._ended.wait(self._seconds / 3):
            try:
                self.renew()
            except QueueyError:
                continue  # the store may be back in time; ensure_held() verifies the lease before anything is replaced

    def _holder_text(self, entry: _LeaseEntry) -> str:
        who = f"process {entry.pid} on {entry.host}, since {_format_time(entry.since)}"
        wait = f"Wait for its end; if it was killed, its lease ends at {_format_time(entry.until)}."
        return f"Another run writes to {self._archive}: {who}. {wait}"


def _process_namespace() -> str:
    """Returns an id of this process's namespace: one boot of one machine or container. Empty if it is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _format_time(ticks: int) -> str:
    return datetime.fromtimestamp(ids.ticks_to_seconds(ticks), UTC).isoformat(" ", "seconds").replace("+00:00", "Z")

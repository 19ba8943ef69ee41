"""Runs over one archive are kept apart by a lease, which ends with its holder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from threading import Event

import pytest

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.pipeline.archive.lease import LEASE_TIMEOUT, ArchiveBusy, ArchiveLease
from queuey.storage import Ledger, bridge
from tests.spark.kept import Kept

ARCHIVE = "file:/srv/archive"


class Later(Ledger):
    """A ledger whose clock can be moved forward, and whose answers can be lost."""

    def __init__(self, inner: Ledger) -> None:
        self._inner = inner
        self.ahead = 0.0
        self.losing = False

    async def now(self) -> int:
        return await self._inner.now() + round(self.ahead * ids.TICKS_PER_SECOND)

    def seconds(self) -> float:
        return ids.ticks_to_seconds(bridge.run(self.now()))

    async def entry(self, work: str, piece: int) -> bytes | None:
        return await self._inner.entry(work, piece)

    async def enter(self, work: str, piece: int, value: bytes, *, expected: bytes | None, **named: float) -> bytes:
        """Enters a value. While ``losing`` is set, the answer is lost: it raises StoreUnavailable afterwards."""
        entry = await self._inner.enter(work, piece, value, expected=expected, **named)
        if self.losing:
            raise StoreUnavailable("away", outcome="unknown")
        return entry


@pytest.fixture
def ledger(embedded: Kept) -> Later:
    return Later(embedded.store.ledger)


def lease(ledger: Later, archive: str = ARCHIVE) -> ArchiveLease:
    return ArchiveLease(ledger, archive, clock=ledger.seconds)


def test_one_at_a_time(ledger: Later) -> None:
    """While a run holds the lease, another is refused with the holder and the times; afterwards it is free."""
    with lease(ledger) as held:
        with pytest.raises(ArchiveBusy) as caught, lease(ledger):
            raise AssertionError("two runs hold the lease")
        held.ensure_held()
        with lease(ledger, "file:/srv/other"):
            pass
    said = str(caught.value)
    assert said.startswith(
        f"Another run writes to {ARCHIVE}: process {os.getpid()} on {socket.gethostname()}, since 20"
    )
    assert "its lease ends at 20" in said
    with lease(ledger):
        pass


def test_killed_run(ledger: Later) -> None:
    """Without renewal the lease ends, and its run can replace nothing afterwards."""
    killed = lease(ledger)
    killed.acquire()
    ledger.ahead = LEASE_TIMEOUT - 5
    with pytest.raises(ArchiveBusy):
        lease(ledger).acquire()
    ledger.ahead = LEASE_TIMEOUT + 1
    second = lease(ledger)
    second.acquire()
    with pytest.raises(ArchiveBusy, match="has ended, and another run has taken it"):
        killed.ensure_held()
    second.ensure_held()
    killed.release()
    with pytest.raises(ArchiveBusy):
        lease(ledger).acquire()


@pytest.mark.needs_programs
def test_killed_run_on_this_machine(ledger: Later, embedded: Kept) -> None:
    """The lease of a dead process on the same machine is free at once."""
    program = (
        "import os, sys; from queuey.storage import sqlite; from queuey.pipeline.archive.lease import ArchiveLease\n"
        "ArchiveLease(sqlite.open_store(__import__('pathlib').Path(sys.argv[1])).ledger, sys.argv[2]).acquire()\n"
        "os._exit(0)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program, embedded.options["data"], ARCHIVE], check=False).returncode == 0
    )
    lease(ledger).acquire()


def test_renewed(ledger: Later) -> None:
    """A run that renews its lease in time keeps it indefinitely."""
    held = lease(ledger)
    held.acquire()
    for _ in range(3):
        ledger.ahead += LEASE_TIMEOUT * 0.8
        held.ensure_held()
        with pytest.raises(ArchiveBusy):
            lease(ledger).acquire()


def test_renewed_beside_the_run(embedded: Kept) -> None:
    """A thread renews the lease while it is held."""
    renewed = Event()

    class Heard(Later):
        async def enter(self, work: str, piece: int, value: bytes, *, expected: bytes | None, **named: float) -> bytes:
            found = await super().enter(work, piece, value, expected=expected, **named)
            if expected is not None:
                renewed.set()
            return found

    with ArchiveLease(Heard(embedded.store.ledger), ARCHIVE, seconds=3.0):
        assert renewed.wait(100)


def test_lost_answer(ledger: Later) -> None:
    """A run whose renewal had no answer still holds the lease, and knows so at the next one."""
    held = lease(ledger)
    held.acquire()
    ledger.losing = True
    with pytest.raises(StoreUnavailable):
        held.renew()
    ledger.losing = False
    held.renew()
    held.ensure_held()

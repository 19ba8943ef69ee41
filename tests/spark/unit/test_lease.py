"""Runs over one archive are kept apart by a lease, which ends with its holder."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.pipeline.archive.lease import LEASE_TIMEOUT, ArchiveBusy, ArchiveLease
from queuey.storage import Ledger, Store
from tests.backends import Clock
from tests.interposed_store import InterposedStore

ARCHIVE = "file:/srv/archive"
MAX_PID = 1 << 22
"""No process of Linux has a higher id."""


Leases = Callable[..., ArchiveLease]


@pytest.fixture
def lease(store: Store, clock: Clock) -> Leases:
    """Makes leases on the store's clock."""

    def make(archive: str = ARCHIVE, ledger: Ledger = store.ledger) -> ArchiveLease:
        return ArchiveLease(ledger, archive, clock=lambda: ids.ticks_to_seconds(clock.ticks))

    return make


def test_one_at_a_time(lease: Leases) -> None:
    """While a run holds the lease, another is refused with the holder and the times; afterwards it is free."""
    with lease() as held:
        with pytest.raises(ArchiveBusy) as caught, lease():
            raise AssertionError("two runs hold the lease")
        held.ensure_held()
        with lease("file:/srv/other"):
            pass
    said = str(caught.value)
    assert said.startswith(
        f"Another run writes to {ARCHIVE}: process {os.getpid()} on {socket.gethostname()}, since 20"
    )
    assert "its lease ends at 20" in said
    with lease():
        pass


def test_killed_run(lease: Leases, clock: Clock) -> None:
    """Without renewal the lease ends, and its run can replace nothing afterwards."""
    killed, second = lease(), lease()
    killed.acquire()
    clock.advance(LEASE_TIMEOUT - 5)
    with pytest.raises(ArchiveBusy):
        second.acquire()
    clock.advance(6)
    second.acquire()
    with pytest.raises(ArchiveBusy, match="has ended, and another run has taken it"):
        killed.ensure_held()
    second.ensure_held()
    killed.release()
    with pytest.raises(ArchiveBusy):
        lease().acquire()


def test_killed_run_on_this_machine(lease: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease of a dead process on the same machine is free at once."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "getpid", lambda: MAX_PID + 1)
        lease().acquire()
    lease().acquire()


def test_renewed(lease: Leases, clock: Clock) -> None:
    """A run that renews its lease in time keeps it indefinitely."""
    held = lease()
    held.acquire()
    for _ in range(3):
        clock.advance(LEASE_TIMEOUT * 0.8)
        held.ensure_held()
        with pytest.raises(ArchiveBusy):
            lease().acquire()


def test_renewed_beside_the_run(store: Store) -> None:
    """A thread renews the lease while it is held."""
    renewed, between = Event(), InterposedStore(store)

    with ArchiveLease(between.store.ledger, ARCHIVE, seconds=0.3):
        between.before(Ledger.change, renewed.set)
        assert renewed.wait(100)


def test_lost_answer(lease: Leases, store: Store) -> None:
    """A run whose renewal had no answer still holds the lease, and knows so at the next one."""
    between = InterposedStore(store)
    held = lease(ledger=between.store.ledger)
    held.acquire()

    async def lose(*change: Any) -> bytes:  # noqa: ANN401 - of any entry
        await store.ledger.change(*change)
        raise StoreUnavailable("away", outcome="unknown")

    between.instead(Ledger.change, lose)
    with pytest.raises(StoreUnavailable):
        held.renew()
    between.restore(Ledger.change)
    held.renew()
    held.ensure_held()

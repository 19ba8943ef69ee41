"""The order of callbacks, whatever the group does at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qdo.consumer.fetcher import Fetcher
from qdo.consumer.owned_partition import FetchBuffer, OwnedPartition, State
from qdo.consumer.partition_listener import CallbackListener, PartitionReader
from qdo.consumer.rebalance.queue_discovery import Refusals
from qdo.coordination import CommittedOffset, OwnedOffset
from qdo.partitions import Partition, Subscription
from qdo.settings import ConsumerSettings
from tests.qdo.consumer.conftest import System
from tests.qdo.unit.samples import ONE, message_id


class ListenerSetup:
    """An ownership that reads from nowhere, with callbacks that can be held up.

    Attributes:
        calls: Beginnings and ends of callbacks, in order.
        holds: Callbacks that wait until their event is set, by name.
    """

    def __init__(self, system: System) -> None:
        self.calls: list[str] = []
        self.holds: dict[str, asyncio.Event] = {}
        self.buffer = FetchBuffer()
        nothing: Any = lambda *_: None  # noqa: E731 - for events that do not happen here
        # A client whose calls go nowhere: these tests are about callbacks.
        system.transport.hold_reads()
        self.fetcher = Fetcher(
            system.connect(),
            self.buffer,
            ConsumerSettings(),
            arrived=nothing,
            missing=nothing,
            failed=nothing,
            refusals=Refusals(Subscription()),
        )
        self.owner = PartitionReader(
            self.buffer,
            self.fetcher,
            [
                CallbackListener(*(self._callback(name) for name in ("assign", "revoke", "lost"))),
                CallbackListener(on_revoke=self._leaving),
            ],
            begin=None,
            changed=self.fetcher.kick,
            failed=nothing,
        )
        self.rows: dict[Partition, OwnedPartition] = {}

    async def assign(self, *partitions: Partition) -> None:
        """Assigns partitions whose message 1 was committed."""
        new = {one: OwnedPartition(one, OwnedOffset(one, CommittedOffset(message_id(1)), 1)) for one in partitions}
        self.rows |= new
        await self.owner.assigned(list(new.values()))

    def stop(self, partition: Partition, state: State) -> OwnedPartition:
        row = self.rows[partition]
        row.state = state
        self.owner.stop([row])
        return row

    async def _leaving(self, _: frozenset[Partition]) -> None:
        self.calls.append("leaving")

    def _callback(self, name: str) -> Any:  # noqa: ANN401 - a callback
        """Returns a callback that records its begin and its end, and waits between for its event if it has one."""

        async def tell(partitions: frozenset[Partition]) -> None:
            numbers = "".join(str(one.number) for one in sorted(partitions))
            self.calls.append(f"{name} {numbers}")
            if name in self.holds:
                await self.holds[name].wait()
                self.calls.append(f"{name} {numbers} done")

        return tell


@pytest.fixture
def setup(system: System) -> ListenerSetup:
    return ListenerSetup(system)


async def test_a_loss_stops_the_partition_at_once(setup: ListenerSetup) -> None:
    """A loss stops reading at once and for good, even while on_assign is still running."""
    hold = setup.holds["assign"] = asyncio.Event()
    assigning = asyncio.create_task(setup.assign(ONE))
    await asyncio.sleep(0)
    row = setup.stop(ONE, "lost")
    hold.set()
    await assigning
    await setup.owner.lost([row])
    assert setup.calls == ["assign 1", "assign 1 done", "lost 1"]
    assert setup.fetcher._free == {}


async def test_a_partition_that_comes_back_is_another_one(setup: ListenerSetup) -> None:
    """A partition that comes back is a new ownership; late events of the old one do not stop it."""
    await setup.assign(ONE)
    old = setup.stop(ONE, "releasing")
    await setup.assign(ONE)
    await setup.owner.lost([old])
    setup.owner.stop([old])
    row = setup.rows[ONE]
    assert row.may_be_read
    assert row.pending_call is not None
    await setup.fetcher.close()


async def test_what_is_stopped_is_not_read_on(setup: ListenerSetup, system: System) -> None:
    """A read that only a stopped partition needed is broken off."""
    await setup.assign(ONE)
    await system.transport.until(lambda: system.transport.held == 1)
    setup.stop(ONE, "revoking")
    await asyncio.gather(*setup.fetcher._tasks, return_exceptions=True)
    assert (system.transport.held, setup.fetcher._pending_calls, setup.fetcher._free) == (0, set(), {})


async def test_a_former_ownership_is_over_before_the_next_begins(setup: ListenerSetup) -> None:
    """If a loss was not reported in time, on_lost runs before the next assignment; later events do nothing."""
    hold = setup.holds["revoke"] = asyncio.Event()
    await setup.assign(ONE)
    old = setup.stop(ONE, "revoking")
    revoking = asyncio.create_task(setup.owner.revoke(old))
    await asyncio.sleep(0)
    await setup.assign(ONE)
    hold.set()
    await revoking
    await setup.owner.lost([old])
    assert setup.calls == ["assign 1", "revoke 1", "lost 1", "assign 1", "revoke 1 done"]
    await setup.owner.lost([setup.stop(ONE, "lost")])
    assert setup.calls[-1] == "lost 1"
    await setup.fetcher.close()


async def test_a_callback_that_is_cancelled_from_inside_is_logged(
    setup: ListenerSetup, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that is cancelled from inside is logged; its partition is read all the same."""
    hold = setup.holds["assign"] = asyncio.Event()

    async def cancelled() -> None:
        raise asyncio.CancelledError

    hold.wait = cancelled  # type: ignore[assignment]
    await setup.assign(ONE)
    assert setup.rows[ONE].may_be_read
    assert "failed for 1 partitions" in caplog.text
    await setup.fetcher.close()

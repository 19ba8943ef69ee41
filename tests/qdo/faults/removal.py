"""Takes one mechanism out of a worker, so that a test can show that the checker would miss it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from unittest import mock

from qdo.assignment import Plan
from qdo.consumer import membership
from qdo.consumer.ownership import Ownership
from qdo.coordination import Held, Member, Offset, Target
from qdo.coordination.encoding import encode_offset
from qdo.coordination.local.database import Database
from qdo.coordination.local.session import LocalSession
from qdo.partitions import Partition, Queue
from qdo.worker.handling import Handling
from qdo.worker.progress import Progress

if TYPE_CHECKING:
    from qdo.coordination.zookeeper.session import ZooKeeperSession

Written = dict[Partition, Held | None]
Offsets = Iterable[tuple[Held, str]]

WRITE = """UPDATE partitions SET offset = ?, version = version + 1 WHERE grp = ? AND queue = ? AND number = ?
    RETURNING version"""


@contextlib.contextmanager
def take_out(mechanism: str) -> Iterator[None]:
    """Does without one of ``MECHANISMS``."""
    with contextlib.ExitStack() as patches:
        for patch in MECHANISMS[mechanism]():
            patches.enter_context(patch)
        yield


def _fencing() -> Iterator[contextlib.AbstractContextManager[object]]:
    """Commits write offsets over whatever they are, and whoever owns the partition."""
    yield mock.patch.object(LocalSession, "commit", _write_local)
    with contextlib.suppress(ModuleNotFoundError):
        from qdo.coordination.zookeeper.session import ZooKeeperSession  # noqa: PLC0415 - needs its driver

        yield mock.patch.object(ZooKeeperSession, "commit", _write_zookeeper)


async def _write_local(self: LocalSession, offsets: Offsets) -> Written:
    stay, keeper = self._stay, self._keeper
    database = Database(keeper._database.path, patience=10)
    written: Written = {}
    try:
        with database.transaction() as tx:
            for (partition, _, _), identifier in offsets:
                key = stay.where, str(partition.queue), partition.number
                (version,) = tx.one(WRITE, identifier, *key)
                written[partition] = Held(partition, Offset(identifier, 0.0, stay.member.id), version)
    finally:
        database.close()
    return written


async def _write_zookeeper(self: ZooKeeperSession, offsets: Offsets) -> Written:
    """Under another session if need be, as comes of using kazoo plainly: its client begins a new one by itself."""
    from qdo.coordination.zookeeper.changes import ANY, Done, Set  # noqa: PLC0415 - see above
    from qdo.coordination.zookeeper.driver import Link  # noqa: PLC0415 - see above

    wanted = list(offsets)
    link = Link(self.link._access)
    await link.open()
    changes = [
        (Set(self._tree.offset(held.partition), encode_offset(Offset(identifier)), ANY),) for held, identifier in wanted
    ]
    written: Written = {}
    for (held, identifier), outcome in zip(wanted, await link.apply(changes), strict=True):
        assert isinstance(outcome, Done)
        written[held.partition] = Held(held.partition, Offset(identifier), outcome.versions[-1])
    await link.close()
    return written


def _stickiness() -> Iterator[contextlib.AbstractContextManager[object]]:
    """Partitions are dealt out evenly, whoever had them before."""
    yield mock.patch.object(membership, "plan", _deal)


def _deal(members: Mapping[str, Member], target: Target | None, now: float, grace: float) -> Plan:
    counts: dict[Queue, int] = {}
    for member in members.values():
        for queue, count in member.queues.items():
            counts[queue] = max(count, counts.get(queue, 0))
    partitions = sorted(Partition(queue, number) for queue, count in counts.items() for number in range(1, count + 1))
    names = sorted(members)
    return Plan(Target({each: names[index % len(names)] for index, each in enumerate(partitions)}), None)


def _halt() -> Iterator[contextlib.AbstractContextManager[object]]:
    """Nobody is told that a session is suspended."""
    yield mock.patch.object(Ownership, "suspended")


def _recording() -> Iterator[contextlib.AbstractContextManager[object]]:
    """Partitions are handed back without recording how far they were handled."""
    yield mock.patch.object(Progress, "flush")


def _abandoning() -> Iterator[contextlib.AbstractContextManager[object]]:
    """What a worker has in hand of partitions that are lost goes on."""
    yield mock.patch.object(Handling, "void")


MECHANISMS = {
    "fencing": _fencing,
    "stickiness": _stickiness,
    "halt": _halt,
    "recording": _recording,
    "abandoning": _abandoning,
}

"""Takes one mechanism out of a worker, so that a test can show that the checker would miss it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from unittest import mock

from qdo.assignment import AssignmentPlan, plan
from qdo.consumer.partition_listener import PartitionListener
from qdo.consumer.rebalance import member_states
from qdo.consumer.rebalance.partition_table import PartitionTable
from qdo.coordination import Member, TargetAssignment
from qdo.partitions import Partition, Queue
from qdo.worker.dispatch.dispatcher import Dispatcher
from qdo.worker.dispatch.offset_committer import OffsetCommitter
from tests.qdo.contract.backends import unfenced
from tests.replacing import replace, replace_in


@contextlib.contextmanager
def take_out(mechanism: str) -> Iterator[None]:
    """Does without one of ``MECHANISMS``."""
    with contextlib.ExitStack() as patches:
        for patch in MECHANISMS[mechanism]():
            patches.enter_context(patch)
        yield


def _fencing() -> Iterator[contextlib.AbstractContextManager[object]]:
    """Commits write offsets over whatever they are, and whoever owns the partition."""
    yield unfenced()


def _stickiness() -> Iterator[contextlib.AbstractContextManager[object]]:
    """Partitions are dealt out evenly, whoever had them before."""
    yield replace_in(member_states, plan, _deal)


def _deal(
    members: Mapping[str, Member],
    queues: Mapping[Queue, int],
    target: TargetAssignment | None,
    now: float,
    grace: float,
) -> AssignmentPlan:
    partitions = sorted(Partition(queue, number) for queue, count in queues.items() for number in range(1, count + 1))
    names = sorted(name for name, member in members.items() if not member.leaving)
    return AssignmentPlan(
        TargetAssignment({each: names[index % len(names)] for index, each in enumerate(partitions)}), None
    )


def _halt() -> Iterator[contextlib.AbstractContextManager[object]]:
    """Nobody is told that a session is suspended, and nobody asks."""
    yield replace(PartitionListener.suspended, mock.Mock())
    yield replace(PartitionTable.connected, lambda self: not self._closed)


def _recording() -> Iterator[contextlib.AbstractContextManager[object]]:
    """Partitions are handed back without recording how far they were handled."""
    yield replace(OffsetCommitter.flush, mock.AsyncMock(return_value=True))


def _abandoning() -> Iterator[contextlib.AbstractContextManager[object]]:
    """What a worker has in hand of partitions that are lost goes on."""
    yield replace(Dispatcher.discard, mock.Mock())


MECHANISMS = {
    "fencing": _fencing,
    "stickiness": _stickiness,
    "halt": _halt,
    "recording": _recording,
    "abandoning": _abandoning,
}

"""Groups in a tree with a mechanism taken out: the mechanism, and the history that breaks a rule without it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.partition_listener import PartitionReader
from qdo.consumer.rebalance.partition_table import PartitionTable
from qdo.consumer.rebalance.queue_discovery import QueueFinder
from qdo.coordination import CommittedOffset, OwnedOffset, Session, Visibility, session
from qdo.coordination.session import Standing
from qdo.coordination.stored_assignments import MemberAssignment, StoredAssignments, StoredTarget, TargetGeneration
from qdo.coordination.tree import ANY_VERSION, Change, Check, Create, Delete, NodeData, SetData, State
from qdo.coordination.watched import WatchedNodes
from qdo.coordination.zookeeper.driver.handler import SessionLease
from qdo.errors import CoordinationError
from qdo.partitions import Partition
from qdo.worker.dispatcher import Dispatcher
from qdo.worker.partition_work import ContiguousOffset, FailedMessage, KeyedQueue, OrderedQueue, PartitionWork
from qdo.worker.runs import MessageRun
from tests.replacing import replace
from tests.sim.groups.storm import broken
from tests.sim.groups.trees.storm import TreeStorm
from tests.sim.playing import Mutation, Real, around

# Mutations of sessions


def _any_version(change: Change) -> Change:
    return tuple(
        msgspec.structs.replace(each, version=ANY_VERSION) if isinstance(each, SetData | Check) else each
        for each in change
    )


def committing_at_any_version(
    real: Callable[..., Change], one: Session, held: OwnedOffset, offset: CommittedOffset
) -> Change:
    return _any_version(real(one, held, offset))


def releasing_without_the_node(real: Callable[..., Change], one: Session, held: OwnedOffset) -> Change:
    return tuple(each for each in real(one, held) if not isinstance(each, Delete))


def claiming_at_the_same_version(
    real: Callable[..., Change],
    one: Session,
    partition: Partition,
    offset: NodeData | None,
    recorded: CommittedOffset,
    standing: Standing,
) -> Change:
    return tuple(
        Check(each.path, each.version) if isinstance(each, SetData) else each
        for each in real(one, partition, offset, recorded, standing)
    )


def claiming_what_is_owned(
    real: Callable[..., Change],
    one: Session,
    partition: Partition,
    offset: NodeData | None,
    recorded: CommittedOffset,
    standing: Standing,
) -> Change:
    return real(one, partition, offset, recorded, standing)[-1:]


def releasing_at_any_version(real: Callable[..., Change], one: Session, held: OwnedOffset) -> Change:
    return _any_version(real(one, held))


async def removing_any_node(one: Session, doubtful: Iterable[Partition]) -> None:
    await one.link.apply([(Delete(one._paths.owner(each)),) for each in sorted(doubtful)])


async def keeping_what_is_written(one: Session) -> frozenset[Partition]:
    """Keeps what another member of the same name has written to its node."""
    node = await one._watching.read_node(one._paths.member(one._member.id))
    if node is None or node.session != one.link.session:
        raise one._end_as_removed()
    return await one._assignments.read_own_partitions()


def claiming_at_any_version(
    real: Callable[..., Change],
    one: Session,
    partition: Partition,
    offset: NodeData | None,
    recorded: CommittedOffset,
    standing: Standing,
) -> Change:
    return _any_version(real(one, partition, offset, recorded, standing))


async def ignore_replacement(_one: Session, _todo: object) -> set[Partition]:
    return set()


async def trust_former_owners(
    real: Callable[..., Awaitable[set[Partition]]], one: Session, todo: Mapping[Partition, Standing]
) -> set[Partition]:
    return await real(one, {each: standing for each, standing in todo.items() if standing == "mine"})


async def trust_own_claims(
    real: Callable[..., Awaitable[set[Partition]]], one: Session, todo: Mapping[Partition, Standing]
) -> set[Partition]:
    return await real(one, {each: standing for each, standing in todo.items() if standing == "former"})


def setting_at_any_version(
    real: Callable[..., Iterator[Change]],
    one: StoredAssignments,
    present: StoredTarget,
    nodes: Mapping[str, MemberAssignment | None],
    generation: TargetGeneration,
) -> Iterator[Change]:
    return map(_any_version, real(one, present, nodes, generation))


def create_permanent_node(where: str, path: str, data: bytes = b"", ephemeral: bool = False) -> Create:  # noqa: FBT001, FBT002
    return Create(path, data, ephemeral and where not in path)


def keep_watched_nodes(one: Session, state: State) -> None:
    """Keeps what it read before the connection broke."""
    if state != "new":
        one._report(state)
    if state == "connected":
        one._report("changed")


def ignore_watch_events(one: WatchedNodes, paths: object) -> None:
    """Ignores changes of watched nodes."""


# Mutations of consumers


async def forget_claim_in_doubt(real: Real, table: PartitionTable, partitions: Iterable[Partition]) -> None:
    rows = dict(table._rows)
    try:
        await real(table, partitions)
    except CoordinationError:
        table._rows = rows
        raise


async def release_before_revoking(real: Real, table: PartitionTable, row: OwnedPartition) -> None:
    table._start_release(row)
    await real(table, row)


async def beginning_at_the_beginning(real: Real, one: PartitionReader, rows: Any) -> None:  # noqa: ANN401
    await real(one, rows)
    for row in rows:
        row.set_position(None)


async def find_queues_once(real: Real, one: QueueFinder) -> None:
    if one.partition_counts is None:
        await real(one)


async def not_waiting_for_lost(table: PartitionTable, row: OwnedPartition) -> None:
    """Allows a partition to be taken again before its owner was notified of the end of the former ownership."""
    table._start_lost_call([row], row.calls)
    row.end_notified = True
    table._forget_if_finished(row)


@contextmanager
def taking_late_calls_for_present_ones() -> Iterator[None]:
    """Notifies late, and applies calls of a former ownership to the present one."""
    with (
        replace(PartitionTable._notify_lost, not_waiting_for_lost),
        replace(PartitionReader._select_present, lambda _, rows: list(rows)),
    ):
        yield


# Mutations of dispatchers


def recording_over_gaps(real: Real, one: ContiguousOffset, identifier: str) -> None:
    real(one, identifier)
    one.end = max(identifier, one.end or "")


def going_on_after_a_failure(
    real: Callable[..., FailedMessage | None], one: OrderedQueue, run: MessageRun, handled: int, *, failed: bool = False
) -> FailedMessage | None:
    return real(one, run, handled + failed)


def handling_keys_out_of_order(
    real: Callable[..., FailedMessage | None], one: KeyedQueue, run: MessageRun, handled: int, *, failed: bool = False
) -> FailedMessage | None:
    held = real(one, run, handled, failed=failed)
    for chain in one._chains.values():
        chain.rotate(-1)
    return held


async def hand_back_while_handling(_: PartitionWork) -> None:
    """Hands a partition back while its messages are being handled."""


def never_stop_run(_: MessageRun) -> None:
    """Does not end a run when the partition is lost or in doubt."""


def not_reading_beside_hung_handlers(_one: Dispatcher, _work: PartitionWork) -> None:
    """Waits for a handler that never ends before it reads its partition again."""


releasing_before_revoking = around(PartitionTable._revoke_row, release_before_revoking)

MUTATIONS: Mapping[str, Mutation] = {
    "a commit checks the version": broken(
        TreeStorm, "fence", 23, around(Session._make_commit, committing_at_any_version)
    ),
    "a claim raises the version": broken(
        TreeStorm, "fence", 23, around(Session._make_claim, claiming_at_the_same_version)
    ),
    "a release checks the version": broken(
        TreeStorm, "owner two", 58, around(Session._make_release, releasing_at_any_version)
    ),
    "a claim checks the version": broken(TreeStorm, "back", 208, around(Session._make_claim, claiming_at_any_version)),
    "an owner's node is removed at its version": broken(
        TreeStorm, "owner", 58, (Session._remove_owners, removing_any_node)
    ),
    "a member that was replaced claims nothing": broken(
        TreeStorm, "balance", 3417, (Session._find_kept_by_replacement, ignore_replacement)
    ),
    "an own claim is confirmed after the offset is read": broken(
        TreeStorm, "fence", 994, around(Session._find_changed_owners, trust_own_claims)
    ),
    "a former owner is confirmed after the offset is read": broken(
        TreeStorm, "owner", 19441, around(Session._find_changed_owners, trust_former_owners)
    ),
    "a member writes its own node": broken(TreeStorm, "balance", 175, (Session.assignment, keeping_what_is_written)),
    "a claim in doubt is remembered": broken(
        TreeStorm, "balance lost gone", 78, around(PartitionTable.claim, forget_claim_in_doubt)
    ),
    "the target is set at its version": broken(
        TreeStorm, "target", 141, around(StoredAssignments._make_transactions, setting_at_any_version)
    ),
    "an assignment waits until its generation is current": broken(
        TreeStorm, "target", 6, (MemberAssignment.is_pending, lambda *_: False)
    ),
    "a claim creates the owner's node": broken(
        TreeStorm, "fence owner", 3, around(Session._make_claim, claiming_what_is_owned)
    ),
    "owner's node goes at a release": broken(
        TreeStorm, "balance rights lost", 0, around(Session._make_release, releasing_without_the_node)
    ),
    "owner's node goes with the session": broken(
        TreeStorm, "balance lost gone", 0, (session, Create, partial(create_permanent_node, "/owners/"))
    ),
    "member's node goes with the session": broken(
        TreeStorm, "balance lost", 0, (session, Create, partial(create_permanent_node, "/members/"))
    ),
    "leader's node goes with the session": broken(
        TreeStorm, "balance lost", 0, (session, Create, partial(create_permanent_node, "/leader"))
    ),
    "a session ends with its lease": broken(TreeStorm, "owner", 10, (SessionLease.lapsed, lambda _: False)),
    "a partition is revoked before its release": broken(TreeStorm, "owner two", 16, releasing_before_revoking),
    "watched nodes are read again after a reconnect": broken(
        TreeStorm, "balance lost", 1, (Session._on_state, keep_watched_nodes)
    ),
    "changes of watched nodes are noticed": broken(
        TreeStorm, "balance lost", 0, (WatchedNodes.invalidate, ignore_watch_events)
    ),
    "a member is assigned only queues that it sees": broken(
        TreeStorm, "rights lost", 0, (Visibility.includes, lambda *_: True)
    ),
    "a partition is read from its offset on": broken(
        TreeStorm, "order", 0, around(PartitionReader.assigned, beginning_at_the_beginning)
    ),
    "a commit passes no gap": broken(TreeStorm, "early", 14, around(ContiguousOffset.mark_done, recording_over_gaps)),
    "a failed message is not handled": broken(
        TreeStorm, "early order", 0, around(OrderedQueue.settle, going_on_after_a_failure)
    ),
    "messages of a key are handled in order": broken(
        TreeStorm, "order", 14, around(KeyedQueue.settle, handling_keys_out_of_order)
    ),
    "messages are finished before a partition is handed back": broken(
        TreeStorm, "two", 174, (PartitionWork.wait_until_quiet, hand_back_while_handling)
    ),
    "late calls are of a former ownership": broken(
        TreeStorm, "owner early lost", 53, taking_late_calls_for_present_ones
    ),
    "results of a former ownership are discarded": broken(
        TreeStorm, "order lost", 221, (PartitionWork.is_discarded, property(lambda _: False))
    ),
    "a partition is read beside a hung handler": broken(
        TreeStorm, "lost", 33, (Dispatcher._readmit_lost, not_reading_beside_hung_handlers)
    ),
    "a run ends when its session does": broken(TreeStorm, "owner", 634, (MessageRun.stop, never_stop_run)),
    "queues are looked up repeatedly": broken(
        TreeStorm, "balance lost gone", 12, around(QueueFinder._refresh_once, find_queues_once)
    ),
}
"""By mechanism."""

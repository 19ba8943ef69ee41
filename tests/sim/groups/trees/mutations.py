"""Groups in a tree with a mechanism taken out: the mechanism, and the history that breaks a rule without it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from qdo.consumer.partition_reader import PartitionReader
from qdo.errors import CoordinationError
from qdo.group.callbacks import CallbackListener
from qdo.group.discovery import QueueFinder
from qdo.group.offsets import PartitionOwnership
from qdo.group.partition_table import PartitionTable
from qdo.group.records import Visibility
from qdo.group.zookeeper import session
from qdo.group.zookeeper.handler import SessionLease
from qdo.group.zookeeper.session import Standing, ZooKeeperSession
from qdo.group.zookeeper.stored_assignments import MemberAssignment, StoredAssignments
from qdo.group.zookeeper.tree import ANY_VERSION, Change, Check, Create, Delete, SetData
from qdo.group.zookeeper.watched import WatchedNodes
from qdo.partitions import Partition
from qdo.worker.dispatcher import Dispatcher
from qdo.worker.partition_work import ContiguousOffset, KeyedQueue, OrderedQueue, PartitionWork
from qdo.worker.runs import MessageRun
from tests.sim.groups.storm import broken
from tests.sim.groups.trees.storm import TreeStorm
from tests.sim.playing import Mutation, Real, altering, answering, around

# Mutations of sessions


def at_any_version(change: Change) -> Change:
    return tuple(
        msgspec.structs.replace(each, version=ANY_VERSION) if isinstance(each, SetData | Check) else each
        for each in change
    )


def releasing_without_the_node(release: Change) -> Change:
    return tuple(each for each in release if not isinstance(each, Delete))


def claiming_at_the_same_version(claim: Change) -> Change:
    return tuple(Check(each.path, each.version) if isinstance(each, SetData) else each for each in claim)


async def removing_any_node(one: ZooKeeperSession, doubtful: Iterable[Partition]) -> None:
    await one.link.apply([(Delete(one._paths.owner(each)),) for each in sorted(doubtful)])


async def keeping_what_is_written(one: ZooKeeperSession) -> frozenset[Partition]:
    """Keeps what another member of the same name has written to its node."""
    node = await one._watching.read_node(one._paths.member(one._member.id))
    if node is None or node.session != one.link.session:
        raise one._end_as_removed()
    return await one._assignments.read_own_partitions()


async def trusting_own_claims(real: Real, one: ZooKeeperSession, todo: Mapping[Partition, Standing]) -> Any:  # noqa: ANN401
    return await real(one, {each: standing for each, standing in todo.items() if standing != "mine"})


async def trusting_former_owners(real: Real, one: ZooKeeperSession, todo: Mapping[Partition, Standing]) -> Any:  # noqa: ANN401
    return await real(one, {each: standing for each, standing in todo.items() if standing != "former"})


def create_permanent_node(where: str, path: str, data: bytes = b"", ephemeral: bool = False) -> Create:  # noqa: FBT001, FBT002
    return Create(path, data, ephemeral and where not in path)


# Mutations of consumers


async def forget_claim_in_doubt(real: Real, table: PartitionTable, partitions: Iterable[Partition]) -> None:
    rows = table._rows
    before = dict(rows)
    try:
        await real(table, partitions)
    except CoordinationError:
        rows.clear()
        rows |= before
        raise


async def release_before_revoking(real: Real, table: PartitionTable, row: PartitionOwnership) -> None:
    table._start_release(row)
    await real(table, row)


async def beginning_at_the_beginning(real: Real, one: PartitionReader, rows: Any) -> None:  # noqa: ANN401
    await real(one, rows)
    for row in rows:
        row.set_position(None)


async def find_queues_once(real: Real, one: QueueFinder) -> None:
    if one.partition_counts is None:
        await real(one)


async def not_waiting_for_lost(real: Real, table: PartitionTable, row: PartitionOwnership) -> None:
    """Allows a partition to be taken again before its owner was notified of the end of the former ownership."""
    await asyncio.wait({asyncio.ensure_future(real(table, row))}, timeout=0)
    row.end_notified = True


# Mutations of dispatchers


def recording_over_gaps(real: Real, one: ContiguousOffset, identifier: str) -> None:
    real(one, identifier)
    one.end = max(identifier, one.end or "")


def going_on_after_a_failure(
    real: Real, one: OrderedQueue, run: MessageRun, handled: int, *, failed: bool = False
) -> Any:  # noqa: ANN401
    return real(one, run, handled + failed)


def handling_keys_out_of_order(real: Real, one: KeyedQueue, *settled: Any, failed: bool = False) -> Any:  # noqa: ANN401
    held = real(one, *settled, failed=failed)
    for chain in one._chains.values():
        chain.rotate(-1)
    return held


async def forgetting_former_ones(real: Real, one: PartitionReader, rows: Any) -> None:  # noqa: ANN401
    one._present.clear()
    await real(one, rows)


async def taking_no_turns(real: Real, listener: CallbackListener, call: Any) -> None:  # noqa: ANN401
    listener._turn = asyncio.Lock()
    await real(listener, call)


releasing_before_revoking = around(PartitionTable._revoke_row, release_before_revoking)
notifying_late = around(PartitionTable._notify_lost, not_waiting_for_lost)
CLAIM = ZooKeeperSession._make_claim
RELEASE = ZooKeeperSession._make_release
FIND_CHANGED_OWNERS = ZooKeeperSession._find_changed_owners

MUTATIONS: Mapping[str, Mutation] = {
    "a commit checks the version": broken(
        TreeStorm, "fence", 18, altering(ZooKeeperSession._make_commit, at_any_version)
    ),
    "a claim raises the version": broken(TreeStorm, "fence", 37, altering(CLAIM, claiming_at_the_same_version)),
    "a release checks the version": broken(TreeStorm, "owner two", 58, altering(RELEASE, at_any_version)),
    "a claim checks the version": broken(TreeStorm, "back", 1, altering(CLAIM, at_any_version)),
    "an owner's node is removed at its version": broken(
        TreeStorm, "owner", 58, (ZooKeeperSession._remove_owners, removing_any_node)
    ),
    "a member that was replaced claims nothing": broken(
        TreeStorm, "balance", 3446, answering(ZooKeeperSession._find_kept_by_replacement, frozenset())
    ),
    "an own claim is confirmed after the offset is read": broken(
        TreeStorm, "fence", 994, around(FIND_CHANGED_OWNERS, trusting_own_claims)
    ),
    "a former owner is confirmed after the offset is read": broken(
        TreeStorm, "owner", 8681, around(FIND_CHANGED_OWNERS, trusting_former_owners)
    ),
    "a member writes its own node": broken(
        TreeStorm, "balance", 175, (ZooKeeperSession.assignment, keeping_what_is_written)
    ),
    "a claim in doubt is remembered": broken(
        TreeStorm, "balance lost gone", 78, around(PartitionTable.claim, forget_claim_in_doubt)
    ),
    "the target is set at its version": broken(
        TreeStorm, "target", 141, altering(StoredAssignments._make_transactions, partial(map, at_any_version))
    ),
    "an assignment waits until its generation is current": broken(
        TreeStorm, "target", 6, answering(MemberAssignment.is_pending, answer=False)
    ),
    "a claim creates the owner's node": broken(TreeStorm, "fence owner", 3, altering(CLAIM, lambda claim: claim[-1:])),
    "owner's node goes at a release": broken(
        TreeStorm, "balance rights lost", 0, altering(RELEASE, releasing_without_the_node)
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
    "a session ends with its lease": broken(TreeStorm, "owner", 10, answering(SessionLease.lapsed, answer=False)),
    "a partition is revoked before its release": broken(TreeStorm, "owner two", 16, releasing_before_revoking),
    "watched nodes are read again after a reconnect": broken(
        TreeStorm, "balance lost", 4, answering(WatchedNodes.forget)
    ),
    "changes of watched nodes are noticed": broken(TreeStorm, "balance lost", 0, answering(WatchedNodes.invalidate)),
    "a member is assigned only queues that it sees": broken(
        TreeStorm, "rights lost", 0, answering(Visibility.includes, answer=True)
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
        TreeStorm, "two", 174, answering(PartitionWork.wait_until_quiet)
    ),
    "callbacks of a member come one at a time": broken(
        TreeStorm, "callbacks", 13, around(CallbackListener._run, taking_no_turns)
    ),
    "a former ownership is lost before the next is assigned": broken(
        *(TreeStorm, "owner early lost", 237, notifying_late, around(PartitionReader.assigned, forgetting_former_ones)),
        (PartitionReader._remove_present, lambda _, rows: list(rows)),
    ),
    "results of a former ownership are discarded": broken(
        TreeStorm, "order lost", 153, answering(PartitionWork.is_discarded, answer=False)
    ),
    "a partition is read beside a hung handler": broken(TreeStorm, "lost", 33, answering(Dispatcher._readmit_lost)),
    "a run ends when its session does": broken(TreeStorm, "owner", 634, answering(MessageRun.stop)),
    "queues are looked up repeatedly": broken(
        TreeStorm, "balance lost gone", 12, around(QueueFinder._refresh_once, find_queues_once)
    ),
}
"""By mechanism."""

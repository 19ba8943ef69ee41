"""Each mechanism that keeps groups in order is needed: without it some history breaks a guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.partition_listener import PartitionReader
from qdo.consumer.rebalance.partition_table import PartitionTable
from qdo.consumer.rebalance.queue_discovery import QueueFinder
from qdo.coordination import CommittedOffset, OwnedOffset, ServiceSession, Session, Visibility, session
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
from tests.replacing import replace, replace_in
from tests.sim.groups.playing import Mutation, find_violations, take_out
from tests.sim.groups.served.storm import ServiceStorm
from tests.sim.groups.trees.storm import TreeStorm

# Mutations of sessions


def _any_version(change: Change) -> Change:
    return tuple(
        msgspec.structs.replace(each, version=ANY_VERSION) if isinstance(each, SetData | Check) else each
        for each in change
    )


def committing_at_any_version(one: Session, held: OwnedOffset, offset: CommittedOffset) -> Change:
    return _any_version(REAL_RECORDING(one, held, offset))


def releasing_without_the_node(one: Session, held: OwnedOffset) -> Change:
    return tuple(each for each in REAL_RELEASING(one, held) if not isinstance(each, Delete))


def claiming_at_the_same_version(
    one: Session, partition: Partition, offset: NodeData | None, recorded: CommittedOffset, standing: Standing
) -> Change:
    return tuple(
        Check(each.path, each.version) if isinstance(each, SetData) else each
        for each in REAL_CLAIMING(one, partition, offset, recorded, standing)
    )


def claiming_what_is_owned(
    one: Session, partition: Partition, offset: NodeData | None, recorded: CommittedOffset, standing: Standing
) -> Change:
    return REAL_CLAIMING(one, partition, offset, recorded, standing)[-1:]


def releasing_at_any_version(one: Session, held: OwnedOffset) -> Change:
    return _any_version(REAL_RELEASING(one, held))


async def removing_any_node(one: Session, doubtful: Iterable[Partition]) -> None:
    await one.link.apply([(Delete(one._paths.owner(each)),) for each in sorted(doubtful)])


async def keeping_what_is_written(one: Session) -> frozenset[Partition]:
    """Keeps what another member of the same name has written to its node."""
    node = await one._watching.read_node(one._paths.member(one._member.id))
    if node is None or node.session != one.link.session:
        raise one._end_as_removed()
    return await one._assignments.read_own_partitions()


def claiming_at_any_version(
    one: Session, partition: Partition, offset: NodeData | None, recorded: CommittedOffset, standing: Standing
) -> Change:
    return _any_version(REAL_CLAIMING(one, partition, offset, recorded, standing))


async def ignore_replacement(_one: Session, _todo: object) -> set[Partition]:
    return set()


async def trust_former_owners(one: Session, todo: Mapping[Partition, Standing]) -> set[Partition]:
    return await REAL_CHANGED_OWNERS(one, {each: standing for each, standing in todo.items() if standing == "mine"})


async def trust_own_claims(one: Session, todo: Mapping[Partition, Standing]) -> set[Partition]:
    return await REAL_CHANGED_OWNERS(one, {each: standing for each, standing in todo.items() if standing == "former"})


def setting_at_any_version(
    one: StoredAssignments,
    present: StoredTarget,
    nodes: Mapping[str, MemberAssignment | None],
    generation: TargetGeneration,
) -> Iterator[Change]:
    return map(_any_version, REAL_SETTING(one, present, nodes, generation))


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


# Mutations of sessions of the service


async def lasting_longer(one: ServiceSession, wait: float) -> None:
    """Counts the session from a while after the answer."""
    await REAL_HEARTBEAT(one, wait)
    one._ends += 2.0


async def claiming_at_the_beginning(
    one: ServiceSession, partitions: Iterable[Partition]
) -> dict[Partition, OwnedOffset]:
    held = await REAL_SERVICE_CLAIM(one, partitions)
    return {each: msgspec.structs.replace(owned, offset=CommittedOffset()) for each, owned in held.items()}


# Mutations of consumers


async def forget_claim_in_doubt(table: PartitionTable, partitions: Iterable[Partition]) -> None:
    rows = dict(table._rows)
    try:
        await REAL_CLAIM(table, partitions)
    except CoordinationError:
        table._rows = rows
        raise


async def releasing_before_revoking(table: PartitionTable, row: OwnedPartition) -> None:
    table._start_release(row)
    await REAL_REVOKE(table, row)


async def beginning_at_the_beginning(one: PartitionReader, rows: Any) -> None:  # noqa: ANN401
    await REAL_ASSIGNED(one, rows)
    for row in rows:
        row.set_position(None)


async def find_queues_once(one: QueueFinder) -> None:
    if one.partition_counts is None:
        await REAL_FIND(one)


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


def recording_over_gaps(one: ContiguousOffset, identifier: str) -> None:
    REAL_DONE(one, identifier)
    one.end = max(identifier, one.end or "")


def going_on_after_a_failure(
    one: OrderedQueue, run: MessageRun, handled: int, *, failed: bool = False
) -> FailedMessage | None:
    return REAL_SETTLING(one, run, handled + failed)


def handling_keys_out_of_order(
    one: KeyedQueue, run: MessageRun, handled: int, *, failed: bool = False
) -> FailedMessage | None:
    held = REAL_SETTLING_KEYED(one, run, handled, failed=failed)
    for chain in one._chains.values():
        chain.rotate(-1)
    return held


async def hand_back_while_handling(_: PartitionWork) -> None:
    """Hands a partition back while its messages are being handled."""


def never_stop_run(_: MessageRun) -> None:
    """Does not end a run when the partition is lost or in doubt."""


def not_reading_beside_hung_handlers(_one: Dispatcher, _work: PartitionWork) -> None:
    """Waits for a handler that never ends before it reads its partition again."""


REAL_DONE, REAL_SETTLING, REAL_SETTLING_KEYED = ContiguousOffset.mark_done, OrderedQueue.settle, KeyedQueue.settle
REAL_RECORDING, REAL_RELEASING, REAL_CLAIMING = Session._make_commit, Session._make_release, Session._make_claim
REAL_HEARTBEAT, REAL_SERVICE_CLAIM = ServiceSession._heartbeat, ServiceSession.claim
REAL_CHANGED_OWNERS = Session._find_changed_owners
REAL_REVOKE = PartitionTable._revoke_row
REAL_SETTING = StoredAssignments._make_transactions
REAL_CLAIM = PartitionTable.claim
REAL_ASSIGNED, REAL_FIND = PartitionReader.assigned, QueueFinder._refresh_once
needed, without = partial(Mutation, kind=TreeStorm), partial(take_out, kind=TreeStorm)

MUTATIONS: Mapping[str, Mutation] = {
    "a session of the service counts from the sending of its heartbeat": without(
        ServiceSession._heartbeat, lasting_longer, "O1", seed=2, kind=ServiceStorm
    ),
    "a partition of the service is read from its offset on": without(
        ServiceSession.claim, claiming_at_the_beginning, "order", kind=ServiceStorm
    ),
    "a partition of the service is revoked before its release": without(
        PartitionTable._revoke_row, releasing_before_revoking, "two", seed=11, kind=ServiceStorm
    ),
    "a commit checks the version": without(Session._make_commit, committing_at_any_version, "fence", seed=23),
    "a claim raises the version": without(Session._make_claim, claiming_at_the_same_version, "fence", seed=23),
    "a release checks the version": without(Session._make_release, releasing_at_any_version, "owner", "two", seed=58),
    "a claim checks the version": without(Session._make_claim, claiming_at_any_version, "back", seed=208),
    "an owner's node is removed at its version": without(Session._remove_owners, removing_any_node, "owner", seed=58),
    "a member that was replaced claims nothing": without(
        Session._find_kept_by_replacement, ignore_replacement, "balance", seed=3417
    ),
    "an own claim is confirmed after the offset is read": without(
        Session._find_changed_owners, trust_own_claims, "fence", seed=994
    ),
    "a former owner is confirmed after the offset is read": without(
        Session._find_changed_owners, trust_former_owners, "owner", seed=19441
    ),
    "a member writes its own node": without(Session.assignment, keeping_what_is_written, "balance", seed=175),
    "a claim in doubt is remembered": without(
        PartitionTable.claim, forget_claim_in_doubt, "balance", "lost", "gone", seed=78
    ),
    "the target is set at its version": without(
        StoredAssignments._make_transactions, setting_at_any_version, "target", seed=141
    ),
    "an assignment waits until its generation is current": without(
        MemberAssignment.is_pending, lambda *_: False, "target", seed=6
    ),
    "a claim creates the owner's node": without(Session._make_claim, claiming_what_is_owned, "fence", "owner", seed=3),
    "owner's node goes at a release": without(
        Session._make_release, releasing_without_the_node, "balance", "rights", "lost"
    ),
    "owner's node goes with the session": needed(
        lambda: replace_in(session, Create, partial(create_permanent_node, "/owners/")), ("balance", "lost", "gone")
    ),
    "member's node goes with the session": needed(
        lambda: replace_in(session, Create, partial(create_permanent_node, "/members/")), ("balance", "lost")
    ),
    "leader's node goes with the session": needed(
        lambda: replace_in(session, Create, partial(create_permanent_node, "/leader")), ("balance", "lost")
    ),
    "a session ends with its lease": without(SessionLease.lapsed, lambda _: False, "owner", seed=10),
    "a partition is revoked before its release": without(
        PartitionTable._revoke_row, releasing_before_revoking, "owner", "two", seed=16
    ),
    "watched nodes are read again after a reconnect": without(
        Session._on_state, keep_watched_nodes, "balance", "lost", seed=1
    ),
    "changes of watched nodes are noticed": without(WatchedNodes.invalidate, ignore_watch_events, "balance", "lost"),
    "a member is assigned only queues that it sees": without(Visibility.includes, lambda *_: True, "rights", "lost"),
    "a partition is read from its offset on": without(PartitionReader.assigned, beginning_at_the_beginning, "order"),
    "a commit passes no gap": without(ContiguousOffset.mark_done, recording_over_gaps, "early", seed=14),
    "a failed message is not handled": without(OrderedQueue.settle, going_on_after_a_failure, "early", "order"),
    "messages of a key are handled in order": without(KeyedQueue.settle, handling_keys_out_of_order, "order", seed=14),
    "messages are finished before a partition is handed back": without(
        PartitionWork.wait_until_quiet, hand_back_while_handling, "two", seed=174
    ),
    "late calls are of a former ownership": needed(
        taking_late_calls_for_present_ones, ("owner", "early", "lost"), seed=53
    ),
    "results of a former ownership are discarded": without(
        PartitionWork.is_discarded, property(lambda _: False), "order", "lost", seed=221
    ),
    "a partition is read beside a hung handler": without(
        Dispatcher._readmit_lost, not_reading_beside_hung_handlers, "lost", seed=33
    ),
    "a run ends when its session does": without(MessageRun.stop, never_stop_run, "owner", seed=634),
    "queues are looked up repeatedly": without(
        QueueFinder._refresh_once, find_queues_once, "balance", "lost", "gone", seed=12
    ),
}


def test_late_calls_do_nothing() -> None:
    """A call of a former ownership after the present one has begun changes nothing."""
    with replace(PartitionTable._notify_lost, not_waiting_for_lost):
        assert find_violations(range(53, 93, 4), TreeStorm) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms its history breaks a guarantee."""
    assert MUTATIONS[name].is_noticed(), f"find another seed for: {name}"

"""Groups of the service with a mechanism taken out: the mechanism, and the history that breaks a rule without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace as changed

from qdo.group.records import CommittedOffset
from qdo.group.records import SessionOffset as OwnedPartitionOffset
from qdo.group.service import ServiceSession
from qdo.partitions import Partition
from queuey.api.groups import Heartbeat
from queuey.groups import hand_overs, local_group, state_changes
from queuey.groups.hand_overs import HandOvers
from queuey.groups.heartbeat_answers import Targets, find_highest_epoch
from queuey.groups.local_group import LocalGroup
from queuey.groups.queue_searches import find_queues
from queuey.groups.rules import state_draft
from queuey.groups.rules.group_state import GroupState, JoinedMember, PlannedOwner
from queuey.groups.rules.planning import GroupPlan, HandOver, Views, hand_over, make_plan
from queuey.groups.rules.state_draft import GroupDraft
from queuey.groups.state_cache import StateCache
from queuey.groups.state_changes import StateChanges
from queuey.model.groups import GroupChange, MemberCommit, OwnedOffset, OwnedOffsets
from queuey.model.messages import OffsetChange, Queue
from queuey.runtime.event_loop import Core
from queuey.storage import Store
from queuey.storage.offset_changes import Decision, decide
from tests.groups.living import make_views
from tests.sim.groups.served import store
from tests.sim.groups.served.aimed import Changing, Deaf, Dying, Generous, Lagging, Standing
from tests.sim.groups.served.client import GroupMember
from tests.sim.groups.served.store import GroupStore
from tests.sim.groups.served.storm import ServiceStorm
from tests.sim.groups.storm import broken
from tests.sim.groups.trees.mutations import releasing_before_revoking
from tests.sim.playing import Mutation, Real, altering, answering, around, patched
from tests.sim.world import Process

Words = Mapping[int, tuple[int, int]]


# Commits


def make_decide(alter_row: Callable[[OwnedOffset, MemberCommit], OwnedOffset]) -> Callable[..., Decision]:
    """Returns a replacement of :func:`decide` that judges a commit by altered rows, and keeps their real owners."""

    def decided(present: dict[int, OwnedOffset], changes: Any, now: float, commit: Any = None, *lost: Any) -> Decision:  # noqa: ANN401
        if commit is None:
            return decide(present, changes, now, commit, *lost)
        shown = {n: alter_row(row, commit) if n in commit.epochs else row for n, row in present.items()}
        decision = decide(shown, changes, now, commit, *lost)
        for number, row in present.items():
            decision.rows[number] = changed(decision.rows[number], owner=row.owner, epoch=row.epoch)
        return decision

    return decided


def skip_owner_check(row: OwnedOffset, commit: MemberCommit) -> OwnedOffset:
    return changed(row, owner=commit.member, epoch=commit.epochs[row.partition])


def skip_epoch_check(row: OwnedOffset, commit: MemberCommit) -> OwnedOffset:
    return changed(row, epoch=commit.epochs[row.partition]) if row.owner == commit.member else row


def skip_position_check(row: OwnedOffset, commit: MemberCommit) -> OwnedOffset:
    return changed(row, position=None)


def decide_without_forward_rule(present: Any, changes: Sequence[OffsetChange], *rest: Any) -> Decision:  # noqa: ANN401
    """Compares only what it is asked to compare."""
    compares = any(change.compare for change in changes)
    judge = decide if compares else make_decide(skip_position_check)
    return judge(present, changes, *rest)


# Hand-overs


async def hand_over_at_any_version(real: Real, one: GroupStore, queue: Queue, group: str, *asked: object) -> Any:  # noqa: ANN401
    return await real(one, queue, group, one.stored.rows(queue.uid).version or None, *asked[1:])


async def read_earlier_offsets(real: Real, one: GroupStore, queue: Queue, *asked: object) -> OwnedOffsets:
    """Returns the offsets of an earlier read with the present version."""
    offsets: OwnedOffsets = await real(one, queue, *asked)
    earlier_reads: dict[int, OwnedOffsets] = vars(one).setdefault("earlier", {})
    earlier = earlier_reads.get(queue.uid, offsets)
    earlier_reads[queue.uid] = offsets
    rows = {n: changed(row, position=earlier.rows.get(n, row).position) for n, row in offsets.rows.items()}
    return OwnedOffsets(offsets.version, rows, offsets.deleted_epoch)


def hand_over_twice_in_an_epoch(state: GroupState, uid: int, recorded: OwnedOffsets, *words: Any) -> HandOver:  # noqa: ANN401
    epoch = state.head.epoch
    owners = {row.partition: row for row in hand_over(state, uid, recorded, *words).owners}
    for number, target in targets_of(state, uid).items():
        row = owners.get(number, recorded.rows.get(number))
        taker = state.members.get(target.member)
        if row is not None and not row.owner and row.epoch == epoch and taker is not None and taker.state == "present":
            owners[number] = changed(row, owner=taker.number)
    return HandOver(tuple(owners.values()), needs_plan=False)


def targets_of(state: GroupState, uid: int) -> Mapping[int, PlannedOwner]:
    return state.plan[uid].targets if uid in state.plan else {}


def accept_give_back_of_any_epoch(state: GroupState, uid: int, recorded: OwnedOffsets, given_back: Words) -> HandOver:
    """Applies a give-back of any ownership to the present one."""
    rows = recorded.rows
    return hand_over(state, uid, recorded, {n: (who, rows[n].epoch) for n, (who, _) in given_back.items() if n in rows})


def report_lost_as_given_back(*asked: Any) -> HandOver:  # noqa: ANN401
    result = hand_over(*asked)
    owners = tuple(changed(row, came="given back") if row.came == "lost" else row for row in result.owners)
    return HandOver(owners, result.needs_plan)


def take_from_living_members(state: GroupState, uid: int, recorded: OwnedOffsets, given_back: Words) -> HandOver:
    targets = targets_of(state, uid)
    rows = recorded.rows
    taken = {n: (row.owner, row.epoch) for n, row in rows.items() if n in targets and targets[n].member != row.owner}
    return hand_over(state, uid, recorded, {**taken, **given_back})


def hand_over_without_another_plan(*asked: Any) -> HandOver:  # noqa: ANN401
    return HandOver(hand_over(*asked).owners, needs_plan=False)


@contextmanager
def leave_hand_overs_to_planner() -> Iterator[None]:
    """Leaves hand-overs to the process that has planned, and to those that receive a give-back."""
    epochs: dict[Process | None, int] = {}

    def adopt(real: Real, cache: StateCache, state: GroupState, *seen: Any, is_own: bool = False) -> None:  # noqa: ANN401
        if is_own and state.head.epoch != cache.state.head.epoch:
            epochs[Process.present] = state.head.epoch
        real(cache, state, *seen, is_own=is_own)

    def decided(state: GroupState, uid: int, recorded: OwnedOffsets, given_back: Words) -> HandOver:
        if given_back or epochs.get(Process.present) == state.head.epoch:
            return hand_over(state, uid, recorded, given_back)
        return HandOver((), needs_plan=False)

    with patched([around(StateCache.adopt, adopt), (hand_overs, hand_over, decided)]):
        yield


async def treat_unnamed_as_given_back(real: Real, one: LocalGroup, text: str, *asked: Any, must_answer: bool) -> Any:  # noqa: ANN401
    content: Heartbeat = asked[1]
    words: dict[str, Words] = {}
    member = number_of(text)
    for name, (_, known) in one.hand_overs.rows.items():
        owned = {n: row.epoch for n, row in known.items() if row.owner == member}
        named = content.owned.get(name, {})
        if missing := {n: (member, epoch) for n, epoch in owned.items() if n not in named}:
            words[name] = missing
    await one.hand_overs.hand_over_queues(words, one.cache.next_moment(), words)
    return await real(one, text, *asked, must_answer=must_answer)


def find_rows_of_any_age(real: Real, one: HandOvers, name: str, _since: int = 0) -> Any:  # noqa: ANN401
    """Finds rows that may lack the notes that the member needs."""
    return real(one, name)


# Sessions


def make_draft_without_slack(real: Real, one: GroupDraft, state: GroupState, now: int, _slack: int, seen: Any) -> None:  # noqa: ANN401
    real(one, state, now, 0, seen)


async def renew_session_without_quorum(one: GroupStore, application: str, name: str, member: int, session: int) -> int:
    seen = one.now_ms()
    await one.call(lambda: one.stored.stamp(member, seen))
    return seen


async def read_sessions_before_clock(real: Real, one: GroupStore, *where: str) -> Any:  # noqa: ANN401
    found = await real(one, *where)
    await one.call(lambda: None)
    return changed(found, clock=one.now_ms())


def number_of(text: str) -> int:
    """Returns the number of a member from its id."""
    return int(text.partition("-")[0])


async def answer_with_whole_session(real: Real, one: LocalGroup, text: str, *asked: Any, must_answer: bool) -> Any:  # noqa: ANN401
    answer = await real(one, text, *asked, must_answer=must_answer)
    member = one.cache.state.members.get(number_of(text))
    return answer if answer is None or member is None else changed(answer, session=member.session / 1000)


def count_as_seen(real: Real, one: LocalGroup, member: JoinedMember) -> int:
    """Counts no session as over."""
    assert Process.present is not None
    seen: int = real(one, member)
    return max(seen, round(1000 * Process.present.clock()) - member.session // 2)


# Plans


async def change_group_at_any_version(
    real: Real, one: GroupStore, application: str, name: str, _version: int, change: GroupChange
) -> Any:  # noqa: ANN401
    return await real(one, application, name, one.stored.group.version, change)


def make_plan_with_new_members(state: GroupState, queues: Sequence[Queue], views: Views) -> GroupPlan:
    """Assigns partitions to members that may never know of it."""
    members = {n: changed(one, state="present") if one.state == "new" else one for n, one in state.members.items()}
    return make_plan(changed(state, members=members), queues, views)


async def find_queues_in_lists_only(
    core: Core, store: Store, application: str, state: GroupState, *, fresh: bool = True
) -> list[Queue]:
    """Treats a queue that is missing in a list as deleted."""
    return await find_queues(core, store, application, changed(state, plan={}), fresh=fresh)


def plan_by_queue_name(state: GroupState, queues: Sequence[Queue], _views: Views) -> GroupPlan:
    uids = {one.name: uid for uid, one in state.plan.items()}
    named = [changed(queue, uid=uids.get(queue.name, queue.uid)) for queue in queues]
    return make_plan(state, named, make_views(state, named))


def plan_by_former_rights(real: Real, one: GroupDraft, queues: Sequence[Queue], views: Views, _: object) -> None:
    real(one, queues, views, ())


async def renew_by_former_rights(real: Real, one: LocalGroup, text: str, *asked: Any, must_answer: bool) -> Any:  # noqa: ANN401
    member = one.cache.state.members.get(number_of(text))
    own = asked[0] if member is None else one.cache.state.subscriptions[member.subscription].credential
    return await real(one, text, own, *asked[1:], must_answer=must_answer)


def leave_without_grace(real: Real, one: GroupDraft, number: int, *, returns: bool = False) -> None:
    real(one, number)


# Members


async def lasting_longer(real: Real, one: ServiceSession, wait: float) -> None:
    """Counts the session from a while after the answer."""
    await real(one, wait)
    one._ends += 2.0


def claiming_at_the_beginning(held: dict[Partition, OwnedPartitionOffset]) -> dict[Partition, OwnedPartitionOffset]:
    return {each: changed(owned, offset=CommittedOffset()) for each, owned in held.items()}


MUTATIONS: Mapping[str, Mutation] = {
    "a session of the service counts from the sending of its heartbeat": broken(
        ServiceStorm, "O1", 0, around(ServiceSession._heartbeat, lasting_longer)
    ),
    "a partition of the service is read from its offset on": broken(
        ServiceStorm, "order", 0, altering(ServiceSession.claim, claiming_at_the_beginning)
    ),
    "a partition of the service is revoked before its release": broken(
        ServiceStorm, "two", 11, releasing_before_revoking
    ),
    "a commit checks the owner and the epoch": broken(
        Changing, "O2", 13, (store, decide, make_decide(skip_owner_check))
    ),
    "a commit checks the epoch": broken(Generous, "O2", 1, (store, decide, make_decide(skip_epoch_check))),
    "a commit moves no offset back": broken(ServiceStorm, "O3 back", 18, (store, decide, decide_without_forward_rule)),
    "offsets are read together with their version": broken(
        Changing, "O4", 0, around(GroupStore.owned_offsets, read_earlier_offsets)
    ),
    "a hand-over checks the version": broken(
        Changing, "O1 O2 O4", 6, around(GroupStore.hand_over, hand_over_at_any_version)
    ),
    "a partition is handed over once in an epoch": broken(
        Generous, "O2", 84, (hand_overs, hand_over, hand_over_twice_in_an_epoch)
    ),
    "a first epoch comes from the clock": broken(
        Changing, "O1 O2", 0, (GroupDraft._next_epoch, lambda one: one.state.head.epoch + 1)
    ),
    "a give-back counts only for its epoch": broken(
        Generous, "O1 O4", 2, (hand_overs, hand_over, accept_give_back_of_any_epoch)
    ),
    "a partition that a heartbeat does not name is not given back": broken(
        Generous, "O1", 6, around(LocalGroup.heartbeat, treat_unnamed_as_given_back)
    ),
    "an answer is by rows that were read after the heartbeat was recorded": broken(
        Changing, "O4", 6, around(HandOvers.find_rows, find_rows_of_any_age)
    ),
    "a lost partition does not come as given back": broken(
        Changing, "O4", 1, (hand_overs, hand_over, report_lost_as_given_back)
    ),
    "a session is over for others S after its end": broken(
        Changing, "O1", 19, around(GroupDraft.__init__, make_draft_without_slack)
    ),
    "a session is stamped at a quorum": broken(
        Lagging, "O1", 279, (GroupStore.renew_session, renew_session_without_quorum)
    ),
    "the clock is checked before an answer": broken(Standing, "O1", 205, answering(GroupStore.confirm_clock)),
    "the clock is read before the sessions": broken(
        Changing, "O1", 57, around(GroupStore.group_sessions, read_sessions_before_clock)
    ),
    "an answer has the rest of the stamped session": broken(
        Deaf, "O1", 1, around(LocalGroup.heartbeat, answer_with_whole_session)
    ),
    "a session that is over is not renewed": broken(
        Changing,
        "O1",
        85,
        around(LocalGroup._find_last_seen_ms, count_as_seen),
        (GroupMember.is_over, lambda one: one.life.ended),
    ),
    "an overdue member is not renewed": broken(Deaf, "balance", 1, answering(Targets.is_overdue, answer=False)),
    "nothing is taken from a living member": broken(
        Changing, "O1", 0, (hand_overs, hand_over, take_from_living_members)
    ),
    "a change of the group checks its version": broken(
        Changing, "O1 O5", 6, around(GroupStore.change_group, change_group_at_any_version)
    ),
    "each process hands over": broken(Dying, "balance", 67, leave_hand_overs_to_planner),
    "owners are asked to give back": broken(Changing, "balance", 327, answering(GroupStore.ask_member)),
    "a new member has no targets": broken(Changing, "O5", 0, (state_draft, make_plan, make_plan_with_new_members)),
    "a hand-over asks for another plan": broken(
        Generous, "balance", 11, (hand_overs, hand_over, hand_over_without_another_plan)
    ),
    "a queue's own row is read before it counts as deleted": broken(
        Changing, "O5", 1, (state_changes, find_queues, find_queues_in_lists_only)
    ),
    "a heartbeat that names a later plan's epoch is answered by that plan": broken(
        Changing, "O5", 135, (local_group, find_highest_epoch, lambda _beat: 0)
    ),
    "plans name queues by uid": broken(Changing, "O5 balance", 2355, (state_changes, make_plan, plan_by_queue_name)),
    "present rights count": broken(
        Changing,
        "O6 rights",
        78,
        around(GroupDraft.plan, plan_by_former_rights),
        answering(StateChanges.remove_members_with_changed_rights),
        around(LocalGroup.heartbeat, renew_by_former_rights),
    ),
    "an instance that returns inherits its targets": broken(
        Changing, "O7", 18, answering(GroupDraft._may_inherit_targets, answer=False)
    ),
    "an instance that leaves is absent for its grace": broken(
        Changing, "O7", 5, around(GroupDraft.leave, leave_without_grace)
    ),
}
"""By mechanism."""

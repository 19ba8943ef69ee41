"""Without any one of its mechanisms a group breaks a guarantee in some history."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace as changed

from queuey.api.groups import Heartbeat, HeartbeatAnswer
from queuey.errors import MemberGone
from queuey.groups import drafts
from queuey.groups.drafts import GroupDraft, ReadRights
from queuey.groups.owners import HandOver, hand_over
from queuey.groups.ownership import ClockSample, GroupSessions, MemberCommit, OwnedOffset, OwnedOffsets
from queuey.groups.planning import Plan, Views, make_plan
from queuey.groups.state import Credential, GroupChange, GroupState, Head, Member
from queuey.messages import OffsetChange, Queue
from queuey.service.core import Core
from queuey.service.groups import hand_overs, local_group, state_changes
from queuey.service.groups.answers import Targets, find_highest_epoch
from queuey.service.groups.hand_overs import HandOvers
from queuey.service.groups.local_group import LocalGroup
from queuey.service.groups.searches import find_queues
from queuey.service.groups.state_cache import StateCache
from queuey.service.groups.state_changes import StateChanges
from queuey.service.watching import Waiter
from queuey.storage import Store
from queuey.storage.offset_changes import Decision, decide
from tests.replacing import replace, replace_in
from tests.sim.groups.playing import Mutation, take_out
from tests.sim.service_groups import store
from tests.sim.service_groups.aimed import (
    Apart,
    Deaf,
    Dying,
    Forgetful,
    Generous,
    Hesitant,
    Lagging,
    Listing,
    Recreated,
    Restless,
    Returning,
    Standing,
)
from tests.sim.service_groups.members import Member as Client
from tests.sim.service_groups.store import GroupStore
from tests.sim.service_groups.storm import Storm
from tests.unit.groups.living import make_views

Words = Mapping[int, tuple[int, int]]


# Commits


def make_decide(alter_row: Callable[[OwnedOffset, MemberCommit], OwnedOffset]) -> Callable[..., Decision]:
    """Returns a replacement of :func:`decide` that judges a commit by altered rows, and keeps their real owners."""

    def decided(
        present: dict[int, OwnedOffset],
        changes: Sequence[OffsetChange],
        now: float,
        commit: MemberCommit | None = None,
        lost: Container[int] = (),
    ) -> Decision:
        if commit is None:
            return decide(present, changes, now, commit, lost)
        shown = {n: alter_row(row, commit) if n in commit.epochs else row for n, row in present.items()}
        decision = decide(shown, changes, now, commit, lost)
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


def decide_without_forward_rule(
    present: dict[int, OwnedOffset],
    changes: Sequence[OffsetChange],
    now: float,
    commit: MemberCommit | None = None,
    lost: Container[int] = (),
) -> Decision:
    """Compares only what it is asked to compare."""
    if commit is None or any(change.compare for change in changes):
        return decide(present, changes, now, commit, lost)
    return make_decide(skip_position_check)(present, changes, now, commit, lost)


# Hand-overs


async def hand_over_at_any_version(
    one: GroupStore, queue: Queue, group: str, version: int | None, owners: Sequence[OwnedOffset]
) -> bool:
    return await REAL_HAND_OVER(one, queue, group, one._stored.rows(queue.uid).version or None, owners)


async def read_earlier_offsets(one: GroupStore, queue: Queue, group: str, notes: Container[int] = ()) -> OwnedOffsets:
    """Returns the offsets of an earlier read with the present version."""
    offsets = await REAL_OWNED(one, queue, group, notes)
    earlier_reads: dict[int, OwnedOffsets] = vars(one).setdefault("earlier", {})
    earlier = earlier_reads.get(queue.uid)
    earlier_reads[queue.uid] = offsets
    if earlier is None:
        return offsets
    rows = {n: changed(row, position=earlier.rows.get(n, row).position) for n, row in offsets.rows.items()}
    return OwnedOffsets(offsets.version, rows, offsets.deleted_epoch)


def hand_over_twice_in_an_epoch(state: GroupState, uid: int, recorded: OwnedOffsets, given_back: Words) -> HandOver:
    epoch = state.head.epoch
    result = hand_over(state, uid, recorded, given_back)
    owners = {row.partition: row for row in result.owners}
    plan = state.plan.get(uid)
    for number, target in ({} if plan is None else plan.targets).items():
        row = owners.get(number, recorded.rows.get(number))
        taker = state.members.get(target.member)
        if row is not None and not row.owner and row.epoch == epoch and taker is not None and taker.state == "present":
            owners[number] = changed(row, owner=taker.number)
    return HandOver(tuple(owners.values()), needs_plan=False)


def accept_give_back_of_any_epoch(state: GroupState, uid: int, recorded: OwnedOffsets, given_back: Words) -> HandOver:
    """Applies a give-back of any ownership to the present one."""
    rows = recorded.rows
    return hand_over(state, uid, recorded, {n: (who, rows[n].epoch) for n, (who, _) in given_back.items() if n in rows})


def report_lost_as_given_back(state: GroupState, uid: int, recorded: OwnedOffsets, given_back: Words) -> HandOver:
    result = hand_over(state, uid, recorded, given_back)
    owners = tuple(changed(row, came="given back") if row.came == "lost" else row for row in result.owners)
    return HandOver(owners, result.needs_plan)


def take_from_living_members(state: GroupState, uid: int, recorded: OwnedOffsets, given_back: Words) -> HandOver:
    plan = state.plan.get(uid)
    targets = {} if plan is None else plan.targets
    rows = recorded.rows
    taken = {n: (row.owner, row.epoch) for n, row in rows.items() if n in targets and targets[n].member != row.owner}
    return hand_over(state, uid, recorded, {**taken, **given_back})


def hand_over_without_another_plan(state: GroupState, uid: int, recorded: OwnedOffsets, given_back: Words) -> HandOver:
    return HandOver(hand_over(state, uid, recorded, given_back).owners, needs_plan=False)


@contextmanager
def leave_hand_overs_to_planner() -> Iterator[None]:
    """Leaves hand-overs to the process that has planned, and to those that receive a give-back."""
    epochs: dict[StateCache, int] = {}

    def adopt(
        cache: StateCache, state: GroupState, checked: float, targets: Targets | None = None, *, is_own: bool = False
    ) -> None:
        if is_own and state.head.epoch != cache.state.head.epoch:
            epochs[cache] = state.head.epoch
        real_adopt(cache, state, checked, targets, is_own=is_own)

    async def handing(one: HandOvers, name: str) -> Mapping[int, OwnedOffset]:
        queue = await one._find_planned_queue(name, fresh=False)
        is_planner = epochs.get(one._cache) == one._cache.state.head.epoch
        if queue is None or is_planner or one._give_backs.get(name) or one.leavers:
            return await real_handing(one, name)
        found, _ = await one._read(queue)
        return found.rows

    real_adopt, real_handing = StateCache.adopt, HandOvers._hand_over
    with replace(StateCache.adopt, adopt), replace(HandOvers._hand_over, handing):
        yield


async def treat_unnamed_as_given_back(one: LocalGroup, member: Member, beat: Any, *, is_new: bool) -> Any:  # noqa: ANN401
    words: dict[str, Words] = {}
    for name, (_, known) in one.owners.rows.items():
        owned = {n: row.epoch for n, row in known.items() if row.owner == member.number}
        named = beat.content.owned.get(name, {})
        if missing := {n: (member.number, epoch) for n, epoch in owned.items() if n not in named}:
            words[name] = missing
    await one.owners.settle_all(words, beat.recorded, words)
    return await REAL_ANSWER(one, member, beat, is_new=is_new)


async def answer_by_earlier_rows(one: LocalGroup, member: Member, beat: Any, *, is_new: bool) -> Any:  # noqa: ANN401
    """Answers by rows that may lack the notes that the member needs."""
    beat.recorded = 0
    return await REAL_ANSWER(one, member, beat, is_new=is_new)


# Sessions


def make_draft_without_slack(one: GroupDraft, state: GroupState, now: int, slack: int, seen: Mapping[int, int]) -> None:
    REAL_DRAFT(one, state, now, 0, seen)


async def renew_session_without_quorum(one: GroupStore, application: str, name: str, member: int, session: int) -> int:
    seen = one.claim_now()
    await one._call(lambda: one._stored.stamp(member, seen))
    return seen


async def skip_check(_one: GroupStore, _sample: ClockSample) -> None:
    """Answers without a check of the clock."""


async def read_sessions_before_clock(one: GroupStore, application: str, name: str) -> GroupSessions:
    found = await REAL_SESSIONS(one, application, name)
    await one._call(lambda: None)
    return changed(found, clock=one.claim_now())


async def answer_with_whole_session(
    one: LocalGroup, text: str, credential: Credential, content: Heartbeat, waiter: Waiter | None, *, last: bool
) -> HeartbeatAnswer | None:
    answer = await REAL_HEARTBEAT(one, text, credential, content, waiter, last=last)
    member = one.cache.state.members.get(int(text.partition("-")[0]))
    return answer if answer is None or member is None else changed(answer, session=member.session / 1000)


async def renew_after_session_end(one: LocalGroup, member: Member, beat: Any, credential: Credential) -> Member:  # noqa: ANN401
    number = member.number
    if credential.caller != one.cache.state.subscriptions[member.subscription].credential.caller:
        await one.changes.apply(lambda draft: draft.leave(number))
        raise MemberGone
    seen = await one._store.groups.renew_session(*one._key, number, member.session)
    one._renewed[number] = max(seen, one._renewed.get(number, 0))
    if beat.content.leaving and member.state in {"new", "present"}:
        await one.changes.apply(lambda draft: draft.drain(number))
    elif member.state == "new":
        await one.changes.apply(lambda draft: draft.make_present(number))
    present = one.cache.state.members.get(number)
    if present is None:
        raise MemberGone
    return present


@contextmanager
def ignore_session_end() -> Iterator[None]:
    with replace(LocalGroup._renew, renew_after_session_end), replace(Client.is_over, lambda *_: False):
        yield


# Plans


async def change_group_at_any_version(
    one: GroupStore, application: str, name: str, version: int, change: GroupChange
) -> Head | None:
    return await REAL_CHANGE(one, application, name, one._stored.group.version, change)


def count_epochs_from_one(one: GroupDraft) -> int:
    """Counts epochs from 1 in each group."""
    return one._head.epoch + 1


def make_plan_with_new_members(state: GroupState, queues: Sequence[Queue], views: Views) -> Plan:
    """Assigns partitions to members that may never know of it."""
    members = {n: changed(one, state="present") if one.state == "new" else one for n, one in state.members.items()}
    return make_plan(changed(state, members=members), queues, views)


async def find_queues_in_lists_only(
    core: Core, store: Store, application: str, state: GroupState, *, fresh: bool = True
) -> list[Queue]:
    """Treats a queue that is missing in a list as deleted."""
    return await find_queues(core, store, application, changed(state, plan={}), fresh=fresh)


@contextmanager
def plan_by_queue_name() -> Iterator[None]:
    def planned_by_name(state: GroupState, queues: Sequence[Queue], _views: Views) -> Plan:
        uids = {one.name: uid for uid, one in state.plan.items()}
        named = [changed(queue, uid=uids.get(queue.name, queue.uid)) for queue in queues]
        return make_plan(state, named, make_views(state, named))

    with replace_in(state_changes, make_plan, planned_by_name):
        yield


@contextmanager
def keep_former_rights() -> Iterator[None]:
    def plan(one: GroupDraft, queues: Sequence[Queue], views: Views, rights: ReadRights) -> None:
        REAL_PLAN(one, queues, views, lambda credential: credential)

    async def checking(_one: StateChanges, _state: GroupState) -> None:
        pass

    async def renewing(one: LocalGroup, member: Member, beat: Any, _credential: Credential) -> Member:  # noqa: ANN401
        own = one.cache.state.subscriptions[member.subscription].credential
        return await REAL_RENEW(one, member, beat, own)

    with ExitStack() as stack:
        stack.enter_context(replace(GroupDraft.plan, plan))
        stack.enter_context(replace(StateChanges.remove_members_with_changed_rights, checking))
        stack.enter_context(replace(LocalGroup._renew, renewing))
        yield


def leave_without_grace(one: GroupDraft, number: int, *, returns: bool = False) -> None:
    REAL_LEAVE(one, number)


REAL_HAND_OVER, REAL_OWNED, REAL_SESSIONS = GroupStore.hand_over, GroupStore.owned_offsets, GroupStore.group_sessions
REAL_CHANGE, REAL_DRAFT, REAL_PLAN, REAL_LEAVE = (
    GroupStore.change_group,
    GroupDraft.__init__,
    GroupDraft.plan,
    GroupDraft.leave,
)
REAL_ANSWER, REAL_RENEW, REAL_HEARTBEAT = LocalGroup._answer, LocalGroup._renew, LocalGroup.heartbeat


def make_hand_over_replacement(by: Callable[..., HandOver]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: replace_in(hand_overs, hand_over, by)


needed, without = partial(Mutation, kind=Storm), partial(take_out, kind=Storm)

MUTATIONS: Mapping[str, Mutation] = {
    "a commit checks the owner and the epoch": needed(
        lambda: replace_in(store, decide, make_decide(skip_owner_check)), ("O2",), seed=1
    ),
    "a commit checks the epoch": needed(
        lambda: replace_in(store, decide, make_decide(skip_epoch_check)), ("O2",), seed=29
    ),
    "a commit moves no offset back": needed(lambda: replace_in(store, decide, decide_without_forward_rule), ("O3",)),
    "offsets are read together with their version": without(GroupStore.owned_offsets, read_earlier_offsets, "O4"),
    "a hand-over checks the version": without(
        GroupStore.hand_over, hand_over_at_any_version, "O1", "O2", "O4", kind=Restless, seed=36
    ),
    "a partition is handed over once in an epoch": needed(
        make_hand_over_replacement(hand_over_twice_in_an_epoch), ("O2",), kind=Generous, seed=1
    ),
    "a first epoch comes from the clock": without(GroupDraft._next_epoch, count_epochs_from_one, "O1", "O2"),
    "a give-back counts only for its epoch": needed(
        make_hand_over_replacement(accept_give_back_of_any_epoch), ("O1", "O4"), kind=Generous
    ),
    "a partition that a heartbeat does not name is not given back": without(
        LocalGroup._answer, treat_unnamed_as_given_back, "O1", kind=Generous, seed=10
    ),
    "an answer is by rows that were read after the heartbeat was recorded": without(
        LocalGroup._answer, answer_by_earlier_rows, "O4", seed=37
    ),
    "a lost partition does not come as given back": needed(
        make_hand_over_replacement(report_lost_as_given_back), ("O4",), seed=1
    ),
    "a session is over for others S after its end": without(
        GroupDraft.__init__, make_draft_without_slack, "O1", kind=Apart, seed=35
    ),
    "a session is stamped at a quorum": without(
        GroupStore.renew_session, renew_session_without_quorum, "O1", kind=Lagging, seed=29
    ),
    "the clock is checked before an answer": without(
        GroupStore.confirm_clock, skip_check, "O1", kind=Standing, seed=26
    ),
    "the clock is read before the sessions": without(
        GroupStore.group_sessions, read_sessions_before_clock, "O1", kind=Hesitant, seed=37
    ),
    "a member counts its session from its request": without(
        Client.end_of, lambda one, _sent, session: one.world.now + session, "O1", seed=54
    ),
    "an answer has the rest of the stamped session": without(
        LocalGroup.heartbeat, answer_with_whole_session, "O1", kind=Deaf, seed=1
    ),
    "a session that is over is not renewed": needed(ignore_session_end, ("O1",), seed=85),
    "an overdue member is not renewed": without(
        LocalGroup._is_overdue, lambda *_: False, "O5", "O7", kind=Deaf, seed=23
    ),
    "nothing is taken from a living member": needed(make_hand_over_replacement(take_from_living_members), ("O1",)),
    "a change of the group checks its version": without(
        GroupStore.change_group, change_group_at_any_version, "O1", "O5", seed=29
    ),
    "each process hands over": needed(leave_hand_overs_to_planner, ("O5",), kind=Dying, seed=15),
    "owners are asked to give back": without(GroupStore.ask_member, lambda *_: None, "O5", kind=Forgetful, seed=334),
    "a new member has no targets": needed(lambda: replace_in(drafts, make_plan, make_plan_with_new_members), ("O5",)),
    "a hand-over asks for another plan": needed(
        make_hand_over_replacement(hand_over_without_another_plan), ("O5",), kind=Generous, seed=11
    ),
    "a queue's own row is read before it counts as deleted": needed(
        lambda: replace_in(state_changes, find_queues, find_queues_in_lists_only), ("O5",), kind=Listing
    ),
    "a heartbeat that names a later plan's epoch is answered by that plan": needed(
        lambda: replace_in(local_group, find_highest_epoch, lambda _beat: 0), ("O5",), kind=Recreated
    ),
    "plans name queues by uid": needed(plan_by_queue_name, ("O5",), kind=Recreated),
    "present rights count": needed(keep_former_rights, ("O6",), seed=280),
    "an instance that returns inherits its targets": without(
        GroupDraft._may_inherit_targets, lambda *_: False, "O7", kind=Returning, seed=9
    ),
    "an instance that leaves is absent for its grace": without(GroupDraft.leave, leave_without_grace, "O7", seed=17),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms its history breaks a guarantee."""
    assert MUTATIONS[name].is_noticed(), f"find another seed for: {name}"

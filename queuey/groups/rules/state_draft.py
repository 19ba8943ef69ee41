"""Changes of a group's state, collected into one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from msgspec.structs import replace

from queuey.groups.rules.group_state import (
    MAX_MEMBERS,
    MAX_SUBSCRIPTION_BYTES,
    MAX_SUBSCRIPTIONS,
    MAX_SUBSCRIPTIONS_BYTES,
    GroupState,
    GroupSubscription,
    JoinedMember,
    JoinRequest,
    PlannedOwner,
    find_changed_rows,
    subscription_size,
)
from queuey.groups.rules.planning import Views, make_plan
from queuey.model.errors import InvalidRequest, TooManyMembers
from queuey.model.groups import GroupChange
from queuey.model.messages import Queue
from queuey.model.rights import SHARES_TEXT, MemberCredential, has_room

BUSY_INTERVAL_MS, MIN_PLAN_DELAY_MS, MAX_DELAY_DOUBLINGS = 10_000, 200, 4
"""A plan is delayed if the previous plan is younger than ``BUSY_INTERVAL_MS`` (ms).

The delay starts at ``MIN_PLAN_DELAY_MS`` (ms) and is doubled by each such plan, at most ``MAX_DELAY_DOUBLINGS`` times.
"""
HOUR_MS, MAX_JOINS_PER_HOUR = 3_600_000, 5_000
"""Milliseconds of an hour, and max joins of a group per hour."""
ABANDONED_MS = HOUR_MS
"""Min age in milliseconds of the end of its last member at which a group may make room for another."""


class GroupDraft:
    """A working copy of a group's state to which pending requests are applied.

    Args:
        state: The stored state.
        now: Time of a sound clock (ms).
        slack: S, the max difference between clocks (ms).
        seen: When each member was last seen (ms), by member number, read after ``now`` was sampled.

    Attributes:
        unassigned: After a plan, number of requested partitions without a target: no member may read them, or the plan
            has its max size.
    """

    def __init__(self, state: GroupState, now: int, slack: int, seen: Mapping[int, int]) -> None:
        self._before = state
        self._now, self._slack, self._seen = now, slack, seen
        self._head = state.head
        self._members = dict(state.members)
        self._subscriptions = dict(state.subscriptions)
        self._plan = state.plan
        self.unassigned = 0

    def end_sessions(self) -> list[JoinedMember]:
        """Ends the sessions that are over, and the absence of members whose grace is over. Returns these members.

        A present member with an instance and a grace becomes absent; all others are removed.
        """
        ended = [
            member for member in self._members.values() if self._now > self._find_session_end(member) + self._slack
        ]
        for member in ended:
            self.leave(member.number, returns=member.state != "absent")
        return ended

    def is_abandoned(self) -> bool:
        head = self._before.head
        ends = (self._find_session_end(member) for member in self._before.members.values())
        return not self._members and self._now - max(head.born, head.epoch, head.due or 0, *ends) >= ABANDONED_MS

    def join(self, request: JoinRequest, digest: bytes, *, is_admin: bool) -> JoinedMember:
        """Adds a member in the state *new*, which has no targets yet.

        A *new* member with the same instance and credential is removed: the answer to its join was lost.

        Raises:
            TooManyMembers: The group has no room for another member of the credential, or has had too many joins within
                the hour.
            InvalidRequest: The subscriptions of all members would be too long.
        """
        credential = request.credential
        unanswered = [o for o in self._find_members_of_instance(request.instance, credential) if o.state == "new"]
        own = sum(self._is_of(other, credential) for other in self._members.values()) - len(unanswered)
        if not has_room(MAX_MEMBERS, len(self._members) - len(unanswered), own, is_admin=is_admin):
            raise TooManyMembers(f"A group has at most {MAX_MEMBERS:,} members. {SHARES_TEXT}")
        head = self._head
        if not head.born:
            # Above every epoch of a removed group of the same name.
            head = replace(head, born=self._now + 2 * self._slack, creator=credential.id)
        if self._now - head.hour >= HOUR_MS:
            head = replace(head, hour=self._now, hour_member=head.last_member)
        if not has_room(MAX_JOINS_PER_HOUR, head.last_member - head.hour_member, is_admin=is_admin):
            raise TooManyMembers(f"A group has at most {MAX_JOINS_PER_HOUR:,} joins within an hour. {SHARES_TEXT}")
        slots = {other.slot for other in self._members.values()}
        member = JoinedMember(
            slot=next(slot for slot in count() if slot not in slots),
            number=head.last_member + 1,
            digest=digest,
            subscription=self._subscribe(
                GroupSubscription(request.names, request.patterns, credential), is_admin=is_admin
            ),
            instance=request.instance,
            session=request.session,
            revoke=request.revoke,
            grace=request.grace,
            joined=self._now,
            name=request.name,
        )
        for other in unanswered:
            del self._members[other.number]
        self._members[member.number] = member
        self._head = replace(head, last_member=member.number)
        return member

    def make_present(self, number: int) -> None:
        """Makes a new member present.

        Removes former members with the same instance and credential. It inherits their targets if they had the same
        rights and were not leaving. A plan becomes due unless it inherits with the same subscription and the targets
        are even.
        Members in other states, and unknown numbers, are ignored.
        """
        member = self._members.get(number)
        if member is None or member.state != "new":
            return
        credential = self._subscriptions[member.subscription].credential
        former = [o for o in self._find_members_of_instance(member.instance, credential) if o.state != "new"]
        for other in former:
            del self._members[other.number]
        self._members[number] = replace(member, state="present")
        keeping = {other.number for other in former if self._may_inherit_targets(member, other)}
        if keeping:
            self._transfer_targets(keeping, member)
        is_like_former = any(other.number in keeping and other.subscription == member.subscription for other in former)
        if not is_like_former or self._is_uneven():  # Others may have joined while it was absent.
            self.request_plan()

    def leave(self, number: int, *, returns: bool = False) -> None:
        """Removes a member. With ``returns`` one with an instance and a grace becomes absent and keeps its targets."""
        member = self._members.get(number)
        if member is None:
            return
        if returns and member.instance and member.grace and member.state in {"present", "absent"}:
            if member.state == "present":  # Otherwise it is absent already.
                self._members[number] = replace(member, state="absent", absent=self._now)
            return
        del self._members[number]
        if member.state != "new":
            self.request_plan()

    def drain(self, number: int) -> None:
        """Makes a member leave: it keeps its partitions until it gives them back, and the next plan assigns it none."""
        member = self._members.get(number)
        if member is not None and member.state in {"new", "present"}:
            self._members[number] = replace(member, state="leaving")
            self.request_plan()

    def request_plan(self) -> None:
        if self._head.due is None:
            # Epochs of a young group are ahead of the clock.
            last = min(self._head.epoch, self._now)
            delay = MIN_PLAN_DELAY_MS << self._head.busy if self._is_busy() else 0
            self._head = replace(self._head, due=max(last + delay, self._now))

    def is_plan_due(self) -> bool:
        return self._head.due is not None and self._head.due <= self._now

    def plan(self, queues: Sequence[Queue], views: Views, changed: Iterable[int]) -> None:
        """Makes a new plan with a new epoch; none is due any more.

        Before, sessions that are over are ended, and members whose rights have changed are removed (O6).

        Args:
            queues: The present queues that match a subscription of the group.
            views: The queues of each subscription.
            changed: The subscriptions whose credentials have other rights now.
        """
        self.end_sessions()
        for slot in changed:
            for member in [member for member in self._members.values() if member.subscription == slot]:
                self.leave(member.number)
        busy = min(self._head.busy + 1, MAX_DELAY_DOUBLINGS) if self._is_busy() else 0
        self._head = replace(self._head, epoch=self._next_epoch(), due=None, busy=busy)
        self._plan, self.unassigned = make_plan(self.state, queues, views)

    def make_change(self) -> GroupChange | None:
        after = self.state
        return None if after == self._before else GroupChange(after.head, find_changed_rows(self._before, after))

    @property
    def state(self) -> GroupState:
        """The state after the change, except for ``Head.version``, which the store sets."""
        used = {member.subscription for member in self._members.values()}
        subscriptions = {slot: value for slot, value in self._subscriptions.items() if slot in used}
        return GroupState(self._head, dict(self._members), subscriptions, self._plan)

    def _find_session_end(self, member: JoinedMember) -> int:
        if member.state == "absent":
            return member.absent + member.grace
        moved = self._head.moved and self._head.moved + member.session // 3
        return max(self._seen.get(member.number, 0), member.joined, moved) + member.session

    def _subscribe(self, subscription: GroupSubscription, *, is_admin: bool) -> int:
        """Adds a subscription if it is new; returns its slot. Members with equal subscriptions and rights share a slot.

        Raises ``InvalidRequest`` if there are too many subscriptions, or they are too long.
        """
        used = self.state.subscriptions
        for slot, other in used.items():
            if other == subscription:
                return slot
        size = subscription_size(subscription)
        if size > MAX_SUBSCRIPTION_BYTES:
            text = f"names, patterns and rights have {size:,} bytes; {MAX_SUBSCRIPTION_BYTES:,} at most"
            raise InvalidRequest({"queues": text})
        sizes = [subscription_size(other) for other in used.values()]
        own = [s for s, o in zip(sizes, used.values(), strict=True) if o.credential.id == subscription.credential.id]
        if not (
            has_room(MAX_SUBSCRIPTIONS, len(sizes), len(own), is_admin=is_admin)
            and has_room(MAX_SUBSCRIPTIONS_BYTES, sum(sizes), sum(own), size, is_admin=is_admin)
        ):
            limits = f"at most {MAX_SUBSCRIPTIONS} different subscriptions of {MAX_SUBSCRIPTIONS_BYTES:,} bytes"
            raise InvalidRequest({"queues": f"the members of a group have {limits}. {SHARES_TEXT}"})
        free = next(slot for slot in count() if slot not in used)
        self._subscriptions[free] = subscription
        return free

    def _find_members_of_instance(self, name: str, credential: MemberCredential) -> list[JoinedMember]:
        """Returns the members with an instance name and a credential; other credentials may use the name as well."""
        return [m for m in self._members.values() if name and m.instance == name and self._is_of(m, credential)]

    def _is_of(self, member: JoinedMember, credential: MemberCredential) -> bool:
        return self._subscriptions[member.subscription].credential.id == credential.id

    def _may_inherit_targets(self, member: JoinedMember, former: JoinedMember) -> bool:
        """Returns whether a member gets a former one's targets: that one was not leaving and had equal rights."""
        before, after = (self._subscriptions[m.subscription] for m in (former, member))
        return former.state != "leaving" and before.credential == after.credential

    def _transfer_targets(self, former: set[int], member: JoinedMember) -> None:
        self._head = replace(self._head, epoch=self._next_epoch())
        new_target = PlannedOwner(member.number, self._head.epoch)
        is_wanted = self._subscriptions[member.subscription].matcher()
        plan = {}
        for uid, queue in self._plan.items():
            targets = {
                partition: new_target if target.member in former else target
                for partition, target in queue.targets.items()
                if target.member not in former or is_wanted(queue.name)
            }
            if targets:
                plan[uid] = replace(queue, targets=targets)
        self._plan = plan

    def _is_uneven(self) -> bool:
        """Returns whether the target counts of two present members with one subscription differ by two or more."""
        loads = Counter(target.member for queue in self._plan.values() for target in queue.targets.values())
        shares: dict[int, list[int]] = {}
        for member in self._members.values():
            if member.state == "present":
                shares.setdefault(member.subscription, []).append(loads[member.number])
        return any(max(counts) - min(counts) > 1 for counts in shares.values())

    def _is_busy(self) -> bool:
        return self._now - self._head.epoch < BUSY_INTERVAL_MS

    def _next_epoch(self) -> int:
        return max(self._head.epoch + 1, self._now, self._head.born)

"""A group that only its pure functions change: its state, its sessions, and its clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import product

from queuey.groups.rules.group_state import GroupState, JoinRequest, find_changed_rows, read_state
from queuey.groups.rules.planning import SubscribedQueues, Views
from queuey.groups.rules.state_draft import GroupDraft
from queuey.model.groups import StoredGroup
from queuey.model.messages import Queue
from queuey.model.rights import Caller, Grant, MemberCredential, Verb

SLACK = 2000
"""S in ms: the max clock difference."""
NOW = 1_796_000_000_000
Rights = Callable[[MemberCredential], MemberCredential | None]
OWNER = MemberCredential(b"owner", Caller(frozenset({"app:shop"})))


def queue(name: str, partitions: int = 4, uid: int = 0) -> Queue:
    """Returns a queue; by default its uid follows from its name."""
    uid = uid or int.from_bytes(sha256(name.encode()).digest()[:7])
    return Queue(application="shop", name=name, uid=uid, qid=uid, partitions=partitions)


def make_credential(*patterns: str, allow: tuple[Verb, ...] = ("read", "claim")) -> MemberCredential:
    grant = Grant("shop", frozenset(allow), patterns)
    return MemberCredential(sha256("".join(patterns).encode()).digest(), Caller(grants=(grant,)))


def make_views(state: GroupState, queues: Sequence[Queue]) -> Views:
    """Returns the views of all subscriptions, with these queues."""
    views = {slot: SubscribedQueues(subscription, {}) for slot, subscription in state.subscriptions.items()}
    for view, each in product(views.values(), queues):
        view.add(each)
    return views


def plan(draft: GroupDraft, queues: Sequence[Queue], rights: Rights) -> None:
    state = draft.state
    changed = [slot for slot, s in state.subscriptions.items() if rights(s.credential) != s.credential]
    draft.plan(queues, make_views(state, queues), changed)


class LivingGroup:
    """A group.

    Attributes:
        state: The stored state.
        now: The clock.
        seen: When members were seen.
        queues: The existing queues.
        rights: The rights of credentials.
    """

    def __init__(self, *queues: Queue) -> None:
        self.state = GroupState()
        self.now = NOW
        self.seen: dict[int, int] = {}
        self.queues: Sequence[Queue] = queues
        self.rights: Rights = lambda credential: credential
        self.ended: list[int] = []

    def add(
        self,
        patterns: tuple[str, ...] = ("*",),
        credential: MemberCredential = OWNER,
        instance: str = "",
        grace: int = 0,
    ) -> int:
        request = JoinRequest((), patterns, credential, instance, grace=grace)
        is_admin = credential.caller.administers("shop")
        return self.change(lambda draft: draft.join(request, b"digest", is_admin=is_admin).number)

    def enter(
        self,
        patterns: tuple[str, ...] = ("*",),
        credential: MemberCredential = OWNER,
        instance: str = "",
        grace: int = 0,
    ) -> int:
        """Joins a member, sends its first heartbeat, and plans when that is due. Returns its number."""
        number = self.add(patterns, credential, instance, grace)
        self.change(lambda draft: draft.make_present(number))
        self.rest()
        return number

    def rest(self) -> None:
        """Waits until a plan is due, and makes it, with all members seen; does nothing if none will be due."""
        if self.state.head.due is not None:
            self.now = max(self.now, self.state.head.due)
            self.seen = dict.fromkeys(self.state.members, self.now)
            self.change(lambda draft: plan(draft, self.queues, self.rights))

    def change(self, act: Callable[[GroupDraft], object]) -> int:
        """Changes the state, which is stored and read again. Returns the result if it is a number, else 0."""
        draft = self.draft()
        made = act(draft)
        change = draft.make_change()
        if change is not None:
            rows = {(row.kind, row.key): row for row in find_changed_rows(GroupState(), self.state)}
            rows |= {(row.kind, row.key): row for row in change.rows}
            after = read_state(StoredGroup(change.head, tuple(rows.values())))
            assert after == draft.state
            self.state = after
        return made if isinstance(made, int) else 0

    def draft(self) -> GroupDraft:
        return GroupDraft(self.state, self.now, SLACK, self.seen)

    def targets(self) -> dict[tuple[str, int], int]:
        return {
            (planned.name, partition): target.member
            for planned in self.state.plan.values()
            for partition, target in planned.targets.items()
        }

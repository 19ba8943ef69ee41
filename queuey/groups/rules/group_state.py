"""The state of a group: head, members, subscriptions and plan. Times are milliseconds since 1970.

Stored as rows: msgpack, each with a format number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal

import msgspec

from queuey.model.deadletters import matches_patterns
from queuey.model.errors import StoreIncompatible
from queuey.model.groups import CHUNK, MEMBER, SUBSCRIPTION, GroupHead, GroupRow, StoredGroup
from queuey.model.rights import MemberCredential, matches

MAX_MEMBERS, MAX_PARTITIONS = 1000, 10_000
MAX_SUBSCRIPTIONS = 64
MAX_SUBSCRIPTION_BYTES, MAX_SUBSCRIPTIONS_BYTES = 16 << 10, 256 << 10
"""Max bytes of a subscription's row, and of all these rows."""
CHUNK_COUNT = 64
MAX_CHUNK_BYTES, MAX_PLAN_BYTES = 64 << 10, 1 << 20
"""Max bytes of a row of the plan, and of all these rows."""
FORMAT = 1
MAX_PARTITION_BYTES, MAX_QUEUE_BYTES = 14, 32
"""Max bytes of a partition in a chunk, and of a queue in a chunk not counting its partitions and its name."""


class GroupSubscription(msgspec.Struct, frozen=True):
    """The queues that members with the same credential subscribe to.

    Attributes:
        names, patterns: Sorted names of queues, and sorted shell patterns of names, as in Qdo.
        credential: The members' credential. The rights of a key are read from its row; those of a user come from the
            last token.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    credential: MemberCredential

    @property
    def scope(self) -> tuple[str, ...]:
        """Patterns of the queues for which the credential may have rights, as for :func:`queuey.model.rights.matches`.

        Patterns of the subscription mean only these queues. Names were checked when the member joined.
        """
        caller = self.credential.caller
        queues = [(g.queues,) if isinstance(g.queues, str) else g.queues for g in caller.grants]
        return ("*",) if caller.names or ("*",) in queues else tuple(chain.from_iterable(queues))

    def matcher(self) -> Callable[[str], bool]:
        names, scope = frozenset(self.names), self.scope

        def is_matched(name: str) -> bool:
            within = matches_patterns(name, self.patterns) and any(matches(pattern, name) for pattern in scope)
            return name in names or within

        return is_matched


MemberState = Literal["new", "present", "leaving", "absent"]


class JoinedMember(msgspec.Struct, frozen=True):
    """A member of a group.

    Attributes:
        slot: Key of its row.
        number: Public number; each new member gets the next one.
        digest: SHA-256 of the secret part of its id, which is ``<number>-<32 hex digits>``.
        subscription: Slot of its subscription.
        instance: Name of a static member; blank for other members.
        session, revoke, grace: Timeouts in milliseconds.
        joined: When it joined.
        absent: Since when it is absent, or 0.
        name: Name that people read, or blank.
    """

    slot: int
    number: int
    digest: bytes
    subscription: int
    instance: str
    session: int
    revoke: int
    grace: int
    joined: int
    state: MemberState = "new"
    absent: int = 0
    name: str = ""


class PlannedOwner(msgspec.Struct, frozen=True):
    """The member that is to own a partition, and the epoch of the plan that chose it."""

    member: int
    epoch: int


class PlannedQueue(msgspec.Struct, frozen=True):
    """A queue in the plan, with the target of each partition that is to have an owner."""

    uid: int
    name: str
    targets: dict[int, PlannedOwner]


class GroupState(msgspec.Struct, frozen=True):
    """A consistent snapshot of a group.

    Attributes:
        members: Members by number.
        subscriptions: Subscriptions by slot.
        plan: Queues by uid.
    """

    head: GroupHead = GroupHead()
    members: dict[int, JoinedMember] = {}
    subscriptions: dict[int, GroupSubscription] = {}
    plan: dict[int, PlannedQueue] = {}


class JoinRequest(msgspec.Struct, frozen=True):
    """A request to join a group. Its rights and names have been checked. Times are milliseconds."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    credential: MemberCredential
    instance: str = ""
    session: int = 10_000
    revoke: int = 30_000
    grace: int = 0
    name: str = ""


class _PackedQueue(msgspec.Struct, frozen=True, array_like=True):
    """A queue in a chunk. ``members`` and ``ages`` have an item for each partition, from partition 1 on.

    Attributes:
        epoch: The highest epoch of a target.
        members: Number of the member that is the target, or 0.
        ages: How far the epoch of the target is below ``epoch``.
    """

    uid: int
    name: str
    epoch: int
    members: list[int]
    ages: list[int]


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_body_decoder = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_value_decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {
    SUBSCRIPTION: msgspec.msgpack.Decoder(GroupSubscription),
    MEMBER: msgspec.msgpack.Decoder(JoinedMember),
    CHUNK: msgspec.msgpack.Decoder(list[_PackedQueue]),
}


def read_state(stored: StoredGroup) -> GroupState:
    """Decodes the state of a group.

    Raises:
        StoreIncompatible: A row cannot be decoded, or has an unknown format.
    """
    state = GroupState(stored.head, {}, {}, {})
    for row in stored.rows:
        if not row.body:
            continue
        value = _decode(row)
        if row.kind == SUBSCRIPTION:
            state.subscriptions[row.key] = value
        elif row.kind == MEMBER:
            state.members[value.number] = value
        else:
            state.plan.update((queue.uid, _unpack(queue)) for queue in value)
    return state


def find_changed_rows(before: GroupState, after: GroupState) -> tuple[GroupRow, ...]:
    """Returns the rows that differ. A row with a blank body stands for a removed one."""
    members = [{member.slot: member for member in state.members.values()} for state in (before, after)]
    is_planned = after.plan is not before.plan
    chunks = [_group_by_chunk(state.plan.values() if is_planned else ()) for state in (before, after)]
    return (
        *_find_changed(SUBSCRIPTION, before.subscriptions, after.subscriptions),
        *_find_changed(MEMBER, *members),
        *_find_changed(CHUNK, *chunks),
    )


def choose_chunk(uid: int) -> int:
    return (uid * 0x9E3779B97F4A7C15 >> 58) % CHUNK_COUNT


def max_queue_bytes(name: str, partitions: int) -> int:
    return MAX_QUEUE_BYTES + len(name.encode()) + MAX_PARTITION_BYTES * partitions


def subscription_size(subscription: GroupSubscription) -> int:
    return len(_encode((FORMAT, subscription)))


def _decode(row: GroupRow) -> Any:  # noqa: ANN401 - by the kind of the row
    label = f"Row {row.kind}/{row.key} of a consumer group"
    try:
        form, value = _body_decoder.decode(row.body)
        if form == FORMAT:
            return _value_decoders[row.kind].decode(value)
    except msgspec.MsgspecError as error:
        raise StoreIncompatible(f"{label} cannot be read: {error}. Update this program.") from error
    raise StoreIncompatible(f"{label} has format {form}; this program knows {FORMAT}. Update it.")


def _find_changed(kind: int, before: Mapping[int, object], after: Mapping[int, object]) -> Iterator[GroupRow]:
    for key in sorted(before.keys() | after.keys()):
        value = after.get(key)
        if value != before.get(key):
            packed = [_pack(queue) for queue in value] if isinstance(value, list) else value
            yield GroupRow(kind, key, b"" if value is None else _encode((FORMAT, packed)))


def _group_by_chunk(queues: Iterable[PlannedQueue]) -> dict[int, list[PlannedQueue]]:
    chunks: defaultdict[int, list[PlannedQueue]] = defaultdict(list)
    for queue in sorted(queues, key=lambda queue: queue.uid):
        chunks[choose_chunk(queue.uid)].append(queue)
    return dict(chunks)


def _pack(queue: PlannedQueue) -> _PackedQueue:
    epoch = max((target.epoch for target in queue.targets.values()), default=0)
    none = PlannedOwner(0, epoch)
    targets = [queue.targets.get(number, none) for number in range(1, max(queue.targets, default=0) + 1)]
    members = [target.member for target in targets]
    return _PackedQueue(queue.uid, queue.name, epoch, members, [epoch - target.epoch for target in targets])


def _unpack(queue: _PackedQueue) -> PlannedQueue:
    targets = {
        number: PlannedOwner(member, queue.epoch - age)
        for number, (member, age) in enumerate(zip(queue.members, queue.ages, strict=True), 1)
        if member
    }
    return PlannedQueue(queue.uid, queue.name, targets)

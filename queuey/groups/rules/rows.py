"""Encoding of a group's state as rows: msgpack, each with a format number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from queuey.groups.rules.group_state import CHUNK_COUNT, GroupState, Member, PlannedQueue, Subscription, Target
from queuey.model.errors import StoreIncompatible
from queuey.model.groups import CHUNK, MEMBER, SUBSCRIPTION, GroupRow, StoredGroup

FORMAT = 1
MAX_PARTITION_BYTES, MAX_QUEUE_BYTES = 14, 32
"""Max bytes of a partition in a chunk, and of a queue in a chunk not counting its partitions and its name."""


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
    SUBSCRIPTION: msgspec.msgpack.Decoder(Subscription),
    MEMBER: msgspec.msgpack.Decoder(Member),
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


def subscription_size(subscription: Subscription) -> int:
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
    """Packs targets; partitions without one get member 0, and trailing ones are left out."""
    epoch = max((target.epoch for target in queue.targets.values()), default=0)
    none = Target(0, epoch)
    targets = [queue.targets.get(number, none) for number in range(1, max(queue.targets, default=0) + 1)]
    members = [target.member for target in targets]
    return _PackedQueue(queue.uid, queue.name, epoch, members, [epoch - target.epoch for target in targets])


def _unpack(queue: _PackedQueue) -> PlannedQueue:
    targets = {
        number: Target(member, queue.epoch - age)
        for number, (member, age) in enumerate(zip(queue.members, queue.ages, strict=True), 1)
        if member
    }
    return PlannedQueue(queue.uid, queue.name, targets)

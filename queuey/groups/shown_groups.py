"""Views of a group for its callers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from msgspec.structs import replace

from queuey.api.groups import GroupInfo, MemberInfo, OwnedPartition
from queuey.groups.rules.group_state import GroupState
from queuey.groups.rules.planning import is_owner
from queuey.model import ids
from queuey.model.errors import QueueChanged
from queuey.model.groups import OwnedOffset, SeenMember
from queuey.model.messages import Lag, Queue
from queuey.model.rights import MemberCredential
from queuey.storage import Store

PAGE_SIZE, LAG_PAGE_SIZE = 100, 16
"""Max queues of a page, without and with lags."""


async def make_group_info(
    store: Store,
    group: str,
    state: GroupState,
    queues: Sequence[Queue],
    start: str,
    *,
    lag: bool,
    seen: Mapping[int, SeenMember],
) -> GroupInfo:
    """Returns a page of a group's queues from ``start`` on. Only the given queues, in the order of names, count."""
    limit = LAG_PAGE_SIZE if lag else PAGE_SIZE
    first = bisect_left(queues, start, key=attrgetter("name"))
    page = queues[first : first + limit + 1]
    planned = filter(None, map(state.plan.get, map(attrgetter("uid"), queues)))  # In C: there may be 10,000.
    targets = sum(map(len, map(attrgetter("targets"), planned)))
    return GroupInfo(
        group=group,
        centre=state.head.centre,
        epoch=state.head.epoch,
        members=tuple(
            MemberInfo(
                member.number,
                member.name or member.instance or f"#{member.number}",
                member.instance,
                member.state,
                member.joined / 1000,
                member.session / 1000,
                max(member.joined, seen[member.number].seen if member.number in seen else 0) / 1000,
            )
            for member in state.members.values()
        ),
        unassigned=max(0, sum(map(attrgetter("partitions"), queues)) - targets),
        queues={queue.name: await _read_partitions(store, group, state, queue, lag=lag) for queue in page[:limit]},
        next=page[limit].name if len(page) > limit else None,
    )


def hide_members(
    info: GroupInfo, state: GroupState, queues: Iterable[Queue], viewer: MemberCredential | None
) -> GroupInfo:
    """Leaves out members without partitions of the queues, unless they joined with the viewer's credential."""
    targets = (state.plan[queue.uid].targets.values() for queue in queues if queue.uid in state.plan)
    numbers = {target.member for some in targets for target in some}
    numbers.update(partition.owner for some in info.queues.values() for partition in some.values() if partition.owner)
    own = {slot for slot, s in state.subscriptions.items() if viewer is not None and s.credential.id == viewer.id}
    numbers.update(member.number for member in state.members.values() if member.subscription in own)
    return replace(info, members=tuple(member for member in info.members if member.number in numbers))


async def _read_partitions(
    store: Store, group: str, state: GroupState, queue: Queue, *, lag: bool
) -> dict[int, OwnedPartition]:
    """Returns the partitions of a queue, with lags if ``lag`` is true and the queue's row is not outdated.

    An outdated row is read again, so that the next request has the lags.
    """
    rows = (await store.offsets.owned_offsets(queue, group)).rows
    numbers = range(1, queue.partitions + 1)
    offsets = {number: rows.get(number, OwnedOffset(number)) for number in numbers}
    lags: Mapping[int, Lag] = {}
    if lag:
        try:
            behind = await store.messages.lag(queue, [(number, offsets[number].position) for number in numbers])
            lags = dict(zip(numbers, behind, strict=True))
        except QueueChanged:  # The row is outdated. The next request has the lag.
            await store.catalogue.queue(queue.application, queue.name, fresh=True)
    targets = state.plan[queue.uid].targets if queue.uid in state.plan else {}
    return {
        number: _describe_partition(row, state, targets[number].member if number in targets else None, lags.get(number))
        for number, row in offsets.items()
    }


def _describe_partition(row: OwnedOffset, state: GroupState, target: int | None, lag: Lag | None) -> OwnedPartition:
    is_owned = row.owner > 0 and is_owner(state, row)
    return OwnedPartition(
        owner=row.owner if is_owned else None,
        since=row.epoch / 1000 if is_owned else None,
        target=target,
        came=row.came,
        offset=None if row.position is None else ids.to_hex(row.position),
        updated=row.updated or None,
        lag=None if lag is None else lag.count,
        lag_exact=None if lag is None else lag.exact,
        lag_seconds=None if lag is None else lag.seconds,
    )

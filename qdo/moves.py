"""Plans and makes changes of a group's offsets from outside, and migrates offsets from the original Qdo.

Offsets can be moved only while the group has no members, because a running consumer ignores the change.

The workers of the original Qdo, by Mozilla, kept their offsets in messages. The queue ``qdo_status`` has a message for
each partition, with a body such as
``{"partition": "orders-3", "processed": "<message id>", "last_worker": "host-4711"}``.
``processed`` is the id of the last handled message, or empty. A restarted worker read only one of the queue's seven
partitions and wrote a second message for partitions it did not find. So the newest message of each partition counts.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from qdo.coordination import AnyCoordinator, CommittedOffset
from qdo.errors import GroupActive, InvalidArgument
from qdo.partitions import Partition, Queue, join_first
from queuey.client import AsyncClient, Message, QueueNotFound, order_of
from queuey.client.lookup import find_queues

log = logging.getLogger("qdo.consumer")

_MAX_NAMED_MEMBERS = 3
"""Max members that an error names."""


class Move(msgspec.Struct, frozen=True):
    """A change of a partition's offset. ``before`` and ``after`` are None where no offset is recorded."""

    partition: Partition
    before: str | None
    after: str | None

    @property
    def is_change(self) -> bool:
        if self.before is None or self.after is None:
            return self.before is not self.after
        return order_of(self.before) != order_of(self.after)

    @property
    def goes_back(self) -> bool:
        if self.before is None:
            return False
        return self.after is None or order_of(self.after) < order_of(self.before)


def plan_moves(targets: Mapping[Partition, str | None], recorded: Mapping[Partition, CommittedOffset]) -> list[Move]:
    return [
        Move(partition, recorded[partition].id if partition in recorded else None, after)
        for partition, after in sorted(targets.items())
    ]


async def require_no_members(coordinator: AnyCoordinator) -> None:
    """Raises GroupActive if the group has members."""
    if members := await coordinator.members():
        raise GroupActive(
            f"group {coordinator.group} is active, so its offsets cannot be moved: "
            f"stop its members first ({join_first(members, _MAX_NAMED_MEMBERS)})"
        )


async def make_moves(coordinator: AnyCoordinator, planned: Iterable[Move]) -> list[Move]:
    """Makes the moves that change an offset, and returns them.

    Raises:
        GroupActive: The group has members.
        OffsetMoved: Another process has moved one of the offsets since they were read. Call this again.
        CoordinationLost: It is unknown whether the offsets were moved. Call this again.
    """
    changing = [move for move in planned if move.is_change]
    await require_no_members(coordinator)
    if changing:
        await coordinator.set_offsets(
            {move.partition: move.after for move in changing},
            expected={move.partition: move.before for move in changing},
        )
    return changing


async def warn_of_other_stores(coordinator: AnyCoordinator, service: str) -> None:
    """Warns if the group has recorded offsets, but none for this store: then it begins again."""
    services = await coordinator.services()
    if services and service not in services:
        log.warning(
            "group %s has recorded offsets for %s, and none for this service, whose store is %s: it begins again. If "
            "this is the same service with another store, stop the group and run: "
            "qdo offsets seek --to TIME --pattern '*'",
            coordinator.group,
            ", ".join(sorted(services)),
            service,
        )


STATUS_QUEUE = "qdo_status"

Fate = Literal["move", "same", "ahead", "untouched", "gone", "hidden"]
"""What happens to the offset of a status message.

``move``: it is recorded. ``same``: it is already recorded. ``ahead``: the group's offset is later and stays.
``untouched``: no message was processed. ``gone``: the queue or partition does not exist. ``hidden``: the credential may
not see the queue."""


class WorkerStatus(msgspec.Struct, frozen=True):
    """The progress of a partition, from a status message.

    Attributes:
        processed: Id of the last handled message, or None if no message was handled.
        message: Id of the status message.
    """

    queue: str
    number: int
    processed: str | None
    message: str


class Migration(NamedTuple):
    """The result of a migration or of a dry run.

    Attributes:
        moves: The moves with the fate ``move`` or ``same``.
        fates: The fate of each partition.
        unreadable: Messages that are not status messages, with the reason.
    """

    moves: list[Move]
    fates: dict[Partition, Fate]
    unreadable: list[str]


class _StatusBody(msgspec.Struct, frozen=True):
    partition: str
    processed: str = ""


def read_status(message: Message) -> WorkerStatus:
    """Returns the status in a message; raises ValueError if it has none."""
    body = message.body
    value = (
        msgspec.json.decode(body, type=_StatusBody)
        if isinstance(body, str | bytes)
        else msgspec.convert(body, _StatusBody)
    )
    # The queue name may contain dashes, the number cannot.
    queue, dash, number = value.partition.rpartition("-")
    if not (queue and dash and number.isascii() and number.isdigit() and int(number)):
        raise ValueError(f"{value.partition!r} is not <queue>-<partition>")
    processed = uuid.UUID(value.processed).hex if value.processed else None
    return WorkerStatus(queue, int(number), processed, message.id)


def newest_statuses(messages: Iterable[Message]) -> tuple[list[WorkerStatus], list[str]]:
    """Returns the newest status of each partition, and the unreadable messages with the reason."""
    newest: dict[tuple[str, int], WorkerStatus] = {}
    unreadable: list[str] = []
    for message in messages:
        try:
            status = read_status(message)
        except ValueError as error:
            unreadable.append(f"{message.partition}:{message.id}: {error}")
            continue
        key = status.queue, status.number
        if key not in newest or order_of(newest[key].message) < order_of(status.message):
            newest[key] = status
    return [newest[key] for key in sorted(newest)], unreadable


def plan_migration(
    reached: Mapping[Partition, str | None],
    queues: Mapping[Queue, int],
    recorded: Mapping[Partition, CommittedOffset],
    *,
    back: bool = False,
) -> tuple[list[Move], dict[Partition, Fate]]:
    """Plans the migration, without I/O.

    Args:
        reached: The id of the last handled message of each partition, or None if no message was handled.
        queues: The existing queues with their numbers of partitions.
        recorded: The group's offsets.
        back: Also move offsets back.

    Returns:
        The moves to make, some of which may change nothing, and the fate of every partition.
    """
    targets: dict[Partition, str | None] = {}
    fates: dict[Partition, Fate] = {}
    for partition, processed in reached.items():
        if partition.number > queues.get(partition.queue, 0):
            fates[partition] = "gone"
        elif processed is None:
            fates[partition] = "untouched"
        else:
            targets[partition] = processed
    planned = plan_moves(targets, recorded)
    for move in planned:
        fates[move.partition] = _decide_fate(move, back=back)
    return [move for move in planned if fates[move.partition] in {"move", "same"}], fates


def _decide_fate(move: Move, *, back: bool) -> Fate:
    if not move.is_change:
        return "same"
    return "ahead" if move.goes_back and not back else "move"


async def migrate_offsets(
    client: AsyncClient,
    coordinator: AnyCoordinator,
    service: str,
    *,
    back: bool = False,
    dry_run: bool = False,
) -> Migration:
    """Moves the offsets of a group to where the workers of the original Qdo stopped. Can be repeated.

    Args:
        client: A client of the application that ran these workers.
        coordinator: The coordinator of the group.
        service: The id of the service's store.
        back: Also move offsets back.
        dry_run: Only report the moves.

    Raises:
        InvalidArgument: The application has no queue with status messages.
        GroupActive: The group has members.
        OffsetMoved, CoordinationLost: See :func:`make_moves`.
    """
    await require_no_members(coordinator)
    statuses, unreadable = newest_statuses(await _read_status_messages(client))
    reached = {Partition(Queue(service, client.application, s.queue), s.number): s.processed for s in statuses}
    lookup = await find_queues(client, {partition.queue.name for partition in reached})
    queues = {Queue(service, client.application, name): queue.partitions for name, queue in lookup.found.items()}
    planned, fates = plan_migration(reached, queues, await coordinator.offsets(reached), back=back)
    fates |= {partition: "hidden" for partition in reached if partition.queue.name in lookup.hidden}
    if not dry_run:
        await make_moves(coordinator, planned)
    return Migration(planned, fates, unreadable)


async def _read_status_messages(client: AsyncClient) -> list[Message]:
    try:
        # Without the queue's read delay, because workers may have stopped a moment ago.
        return [message async for message in client.read_all(STATUS_QUEUE, delay=False, limit=1000)]
    except QueueNotFound as error:
        raise InvalidArgument(f"application {client.application} has no queue {STATUS_QUEUE}") from error

"""What the tests of groups share: four partitions, ids, and when a group is at rest."""

from __future__ import annotations

from collections.abc import Callable

from qdo.consumer.rebalance.group_member import GroupMember
from qdo.coordination import Member
from qdo.partitions import Partition, Queue
from qdo.subscriptions import Subscription
from tests.qdo.unit.group.scripted import Diary, Scripted, until

QUEUE = Queue("host", "app", "orders")
SEEN = {QUEUE: 4}
PARTITIONS = frozenset(Partition(QUEUE, number) for number in range(1, 5))
ONE, TWO, THREE, FOUR = sorted(PARTITIONS)
WANTS = Subscription(frozenset({"orders"}), (), "host", "app")
OTHER = Member("b", WANTS)
FIRST, LATER = "1" * 32, "2" * 32

Make = Callable[..., GroupMember]


def see(group: GroupMember, service: Scripted, count: int) -> None:
    """Says how many partitions the queue has."""
    service.queues = {QUEUE: count}
    group.recheck()


def share(service: Scripted) -> set[Partition]:
    """Returns what the target gives to the member."""
    target = service.given.target
    return set() if target is None else {partition for partition, owner in target.owners.items() if owner == "a"}


def at_rest(group: GroupMember, service: Scripted, owner: Diary) -> bool:
    """Tells whether the target is right and everybody agrees who has what."""
    owned = {partition for partition, whose in service.owned.items() if whose is service.session}
    return (
        group.state == "active"
        and not service.session.gone
        and service.right()
        and share(service) == owned == set(group.table.held) == owner.have
    )


async def rest(group: GroupMember, service: Scripted, owner: Diary) -> None:
    """Waits until a group has nothing left to do."""
    await until(lambda: at_rest(group, service, owner))

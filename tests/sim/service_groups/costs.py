"""A large group without trouble, whose reads, writes, transactions and bytes are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from queuey.groups.state import Credential, JoinRequest
from tests.sim.service_groups.history import History
from tests.sim.service_groups.members import Habits, Member
from tests.sim.service_groups.stored import Faults, Stored
from tests.sim.service_groups.storm import OWNER, Storm
from tests.sim.service_groups.web import Web
from tests.sim.world import World

PROCESSES = 3
QUIET = Habits(pace=1e6)


class LargeGroup(Storm):
    """A group on Cassandra.

    Args:
        members: How many there are.
        queues: How many.
        partitions: Of each queue.
        grace: Of its members, in ms.
    """

    def __init__(self, members: int, queues: int, partitions: int, *, grace: int = 0) -> None:
        self.world = world = World(1)
        self.rng = world.rng
        self.stored = Stored(world, Faults(slow=0.003), linear=False, slack=0.5)
        self.stored.counting = True
        self.history = History(self.stored)
        self.credential = Credential(b"key", OWNER)
        self.present = {b"key": self.credential}
        self.history.rights = self.present
        self.names = [f"q{number:05}" for number in range(queues)]
        self.uids = {}
        for name in self.names:
            self.uids[name] = [self.stored.create(name, partitions).uid]
        self.grace = grace
        self.webs = [Web(self, 0.0) for _ in range(PROCESSES)]
        self.members = [self._member(number) for number in range(members)]
        self.partitions = queues * partitions

    def _member(self, number: int) -> Member:
        instance = f"i{number}" if self.grace else ""
        request = JoinRequest((), ("q*",), self.credential, instance=instance, grace=self.grace)
        return Member(self, request, QUIET)

    def settled(self) -> bool:
        """Returns whether each partition is at its member, evenly."""
        loads = [len(member.holds) for member in self.members if member.wanted]
        return sum(loads) == self.partitions and max(loads) - min(loads) <= 1

    def settle(self, seconds: float) -> float:
        """Lets time go by until it is settled; returns how many seconds that took, at most so many."""
        began = self.world.now
        while not self.settled() and self.world.now < began + seconds:
            self.world.run(self.world.now + 0.25)
        return self.world.now - began

    def counted(self, act: Callable[[], object], seconds: float = 60.0, rest: float = 5.0) -> Counter[str]:
        """Returns what an act costs until it is settled, and a little longer."""
        self.stored.counts.clear()
        act()
        self.world.run(self.world.now + 0.5)
        self.settle(seconds)
        self.world.run(self.world.now + rest)
        return Counter(self.stored.counts)

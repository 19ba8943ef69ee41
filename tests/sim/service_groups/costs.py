"""A large group without faults. Its reads, writes, transactions and bytes are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from queuey.groups.state import Credential, JoinRequest
from tests.sim.service_groups.history import History
from tests.sim.service_groups.members import Member
from tests.sim.service_groups.network import Habits
from tests.sim.service_groups.stored import Faults, Stored
from tests.sim.service_groups.storm import OWNER, Storm
from tests.sim.service_groups.web import Web
from tests.sim.world import World

PROCESSES = 3
QUIET = Habits(pace=1e6)


class LargeGroup(Storm):
    """A group on Cassandra.

    Args:
        members: Number of members.
        queues: Number of queues.
        partitions: Partitions per queue.
        grace: The members' grace, in ms.
    """

    def __init__(self, members: int, queues: int, partitions: int, *, grace: int = 0) -> None:
        self.world = world = World(1)
        self.rng = world.rng
        self.stored = Stored(world, Faults(slow=0.003), linear=False, slack=0.5)
        self.stored.counting = True
        self.history = History(self.stored)
        self.history.is_large = True
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

    def is_settled(self) -> bool:
        loads = [len(member.holds) for member in self.members if member.wanted]
        return sum(loads) == self.partitions and max(loads) - min(loads) <= 1

    def settle(self, seconds: float) -> float:
        """Runs until the group has settled, at most this long; returns the seconds that it took."""
        began = self.world.now
        while not self.is_settled() and self.world.now < began + seconds:
            self.world.run(self.world.now + 0.25)
        return self.world.now - began

    def count_costs(self, act: Callable[[], object], seconds: float = 60.0) -> Counter[str]:
        """Lets 15 s pass, then returns the costs of an act until the group is settled, plus a little longer."""
        self.world.run(self.world.now + 15.0)
        self.stored.counts.clear()
        act()
        self.world.run(self.world.now + 1.0)
        self.settle(seconds)
        self.world.run(self.world.now + 2.0)
        return Counter(self.stored.counts)

    def join(self) -> None:
        self.members.append(self._member(len(self.members)))
        self.members[-1].begin()

    def leave(self) -> None:
        member = self.members.pop()
        member.draining, member.wanted = True, False

    def restart(self, number: int) -> None:
        """Restarts this many instances, one every 3 s, while that time passes."""
        for at, member in enumerate(self.members[:number]):
            self.world.after(3.0 * at, partial(self._end_member, member))
            self.world.after(3.0 * at + 1.0, partial(self._begin_again, member))
        self.world.run(self.world.now + 3.0 * number)

    def _begin_again(self, member: Member) -> None:
        member.crash()
        member.wanted = True
        member.begin()

    def start(self, seconds: float) -> float:
        """Begins the members evenly over ``seconds``; returns how long the group then takes to settle, at most 60 s."""
        for at, member in enumerate(self.members):
            self.world.after(seconds * at / len(self.members), member.begin)
        self.world.run(self.world.now + seconds)
        return self.settle(60.0)

"""A large group without faults. Its reads, writes, transactions and bytes are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from qdo import ConsumerSettings
from queuey.model.rights import MemberCredential
from tests.sim.groups.machine import Machine
from tests.sim.groups.network import Habits
from tests.sim.groups.served.history import ServiceHistory
from tests.sim.groups.served.scripted import ScriptedMember
from tests.sim.groups.served.stored import Faults, Stored
from tests.sim.groups.served.storm import ANYBODY, ServiceStorm
from tests.sim.groups.served.web import Web
from tests.sim.groups.service import Service
from tests.sim.groups.storm import KEYS
from tests.sim.world import World

PROCESSES = 3


class LargeGroup(ServiceStorm):
    """A group of static members on Cassandra.

    Args:
        members: Number of members.
        queues: Number of queues.
        partitions: Partitions per queue.
    """

    session = 10.0

    def __init__(self, members: int, queues: int, partitions: int) -> None:
        self.world = world = World(1)
        self.settings = ConsumerSettings(grace=60.0)
        self.service = Service(world)
        self.stored = Stored(world, Faults(slow=0.003), linear=False, slack=0.5)
        self.stored.counting = True
        self.history = ServiceHistory(self.service, self.stored)
        self.stored.observer = self.history.rules
        self.history.rules.is_large = True
        self.history.rules.rights = self.present = {ANYBODY.id: ANYBODY}
        names = [f"q{number:05}" for number in range(queues)]
        self.uids = {name: [self.stored.create(name, partitions).uid] for name in names}
        self.webs = [Web(self, 0.0) for _ in range(PROCESSES)]
        self.machines = [self._make_machine(number) for number in range(members)]
        self.partitions = queues * partitions

    def _make_machine(self, number: int) -> Machine:
        return Machine(self, f"i{number}", ScriptedMember, static=True, wants=(), key=KEYS[0])

    def credential(self, machine: Machine) -> MemberCredential:
        """Returns the same credential for all: a group has few subscriptions."""
        return ANYBODY

    def draw_habits(self) -> Habits:
        return Habits(pace=1e6)

    def is_settled(self) -> bool:
        loads = [len(life.holds) for life in self.history.lives_of if not life.ended]
        is_complete = len(loads) == sum(machine.up for machine in self.machines)
        return is_complete and sum(loads) == self.partitions and max(loads) - min(loads) <= 1

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
        self.machines.append(self._make_machine(len(self.machines)))
        self.machines[-1].begin()

    def leave(self) -> None:
        machine = self.machines.pop()
        assert isinstance(machine.member, ScriptedMember)
        machine.member.leaving = True
        machine.leave()

    def restart(self, number: int) -> None:
        """Restarts this many instances, one every 3 s, while that time passes."""
        for at, machine in enumerate(self.machines[:number]):
            self.world.after(3.0 * at, machine.leave)
            self.world.after(3.0 * at + 1.0, partial(self._begin_again, machine))
        self.world.run(self.world.now + 3.0 * number)

    def _begin_again(self, machine: Machine) -> None:
        machine.crash()
        machine.begin()

    def start(self, seconds: float) -> float:
        """Begins the members evenly over ``seconds``; returns how long the group then takes to settle, at most 60 s."""
        for at, machine in enumerate(self.machines):
            self.world.after(seconds * at / len(self.machines), machine.begin)
        self.world.run(self.world.now + seconds)
        return self.settle(60.0)

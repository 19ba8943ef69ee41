"""Groups of the service: the real service and the real sessions of consumers, over a simulated store and network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from msgspec import structs

from qdo.group.service import ServiceCoordinator
from queuey.client import AsyncClient
from queuey.model.rights import Caller, Grant, MemberCredential
from tests.sim.groups.machine import Machine
from tests.sim.groups.member import ConsumerMember, Member, WorkerMember
from tests.sim.groups.network import Habits
from tests.sim.groups.served.client import GroupClient
from tests.sim.groups.served.history import ServiceHistory
from tests.sim.groups.served.rules import Place
from tests.sim.groups.served.scripted import ScriptedMember
from tests.sim.groups.served.stored import APPLICATION, GROUP, Faults, Stored
from tests.sim.groups.served.web import Web
from tests.sim.groups.service import ServiceClient
from tests.sim.groups.storm import Storm
from tests.sim.groups.tree import TIMEOUT, TreeLink

RESTS = 15.0
"""Max seconds for which plans rest, requests of the storm may still arrive, and clocks let a session last longer."""
TROUBLE = Habits(repeats=0.05, loses=0.03)
ANYBODY = MemberCredential(b"somebody", Caller(frozenset({f"app:{APPLICATION}"})))
"""A credential that is not a member's."""


class ServiceStorm(Storm):
    """One history of a group of the service.

    Attributes:
        history: What happened.
        session: Seconds of a session.
        linear: Fraction of histories whose store has SQLite's semantics.
        slacks: Choices of S on Cassandra, in seconds.
        processes: Choices of the number of processes.
    """

    history: ServiceHistory
    programs: Sequence[type[Member]] = (ConsumerMember, WorkerMember, ScriptedMember)
    session, linear = TIMEOUT, 0.3
    slacks: Sequence[float] = (0.25, 1.0)
    processes: Sequence[int] = (1, 2, 3)

    def _make_history(self) -> ServiceHistory:
        rng = self.world.rng
        linear = rng.random() < self.linear
        slack = 1.0 if linear else rng.choice(self.slacks)
        self.stored = Stored(self.world, self.draw_faults(linear=linear), linear=linear, slack=slack)
        self.uids: dict[str, list[int]] = defaultdict(list)
        history = ServiceHistory(self.service, self.stored)
        self.present: dict[bytes, MemberCredential | None] = {}
        history.rules.rights = self.present
        offsets = (0.0,) if linear else (-0.4 * slack, 0.0, 0.4 * slack)
        self.webs = [Web(self, rng.choice(offsets)) for _ in range(rng.choice(self.processes))]
        return history

    def draw_faults(self, *, linear: bool) -> Faults:
        rng = self.world.rng
        faults = Faults(failing=rng.choice((0, 0.02)), hesitant=rng.choice((0, 0.004)))
        if linear:
            return faults
        return replace(faults, lost=rng.choice((0, 0.03)), late=rng.choice((0, 0.1)), lacking=0.05)

    @property
    def calm(self) -> float:
        return super().calm + RESTS

    def coordinate(self, machine: Machine, links: list[TreeLink]) -> ServiceCoordinator:
        client = ServiceClient(
            self.service, lambda: machine.key, lambda: not machine.no_service, GroupClient(self, machine)
        )
        times = {"revoke_timeout": self.settings.revoke_timeout, "grace": self.settings.grace}
        return ServiceCoordinator(
            cast("AsyncClient", client), GROUP, session_timeout=self.session, clock=lambda: self.world.now, **times
        )

    def session_of(self, machine: Machine, links: list[TreeLink]) -> int:
        return max(number for number, loop in self.history.loops.items() if loop is machine.loop)

    def ended(self, machine: Machine) -> None:
        for number, life in enumerate(self.history.lives_of):
            if self.history.loops[number] is machine.loop:
                self.history.end(life)

    def credential(self, machine: Machine) -> MemberCredential:
        """Returns the credential of a machine. Machines of one name have the same."""
        grant = Grant(APPLICATION, frozenset({"read", "claim"}), machine.key.patterns)
        credential = MemberCredential(machine.name.encode(), Caller(grants=(grant,)))
        self.present[credential.id] = credential
        return credential

    def rights(self, credential: MemberCredential) -> MemberCredential | None:
        return self.present.get(credential.id)

    # Queues

    def create(self, name: str) -> None:
        """Creates a queue, unless one of its name was removed: offsets are tracked by name."""
        if name not in self.uids:
            self.recreate(name)

    def recreate(self, name: str) -> None:
        """Creates a queue, which may be there already. The new one has neither owners nor offsets."""
        for places in (self.history.owners, self.history.offsets):
            for place in [place for place in places if place.split("/")[2] == name]:
                del places[place]
        super().create(name)
        self.uids[name].append(self.stored.create(name, len(self.service.queues[name])).uid)

    def place(self, name: str, number: int, epoch: int) -> Place:
        """Returns the partition that was owned under an epoch: queues may have been recreated."""
        for uid in reversed(self.uids[name]):
            row = self.stored.rows(uid).value.get(number)
            if row is not None and row.epoch == epoch:
                return uid, number
        return self.uids[name][-1], number

    def remove(self, name: str) -> None:
        super().remove(name)
        if name not in self.service.queues and self.stored.queues.pop(name, None) is not None:
            for place in [place for place in self.history.owners if place.split("/")[2] == name]:
                del self.history.owners[place]

    def add_partition(self) -> None:
        super().add_partition()
        for name, logs in self.service.queues.items():
            if (queue := self.stored.queues[name]).partitions < len(logs):
                version = next(self.stored.tokens)
                self.stored.queues[name] = structs.replace(queue, partitions=len(logs), version=version)

    def change_rights(self) -> None:
        super().change_rights()
        for machine in self.machines:
            before = self.present.get(machine.name.encode())
            if before is not None and self.credential(machine) != before:
                self.excuse_lives(before.id)

    def excuse_lives(self, key: bytes) -> None:
        """Excuses lives of a key whose rights have changed."""
        self.history.rules.narrowed[key] = self.world.now
        for life in self.history.lives_of:
            life.excused = life.excused or life.credential.id == key

    # Faults

    def list_faults(self) -> Sequence[Callable[[], None]]:
        return [
            *[self._crash] * 2,
            *[self._pause] * 3,
            *[self._cut_service] * 3,
            *[self._lose_answers] * 2,
            self._crash_web,
            self._pause_web,
            self._stand_web,
            *[self._leave_and_restart] * 2,
            *[self._replace] * 3,
            self._create_or_remove_queue,
            self.add_partition,
            self.change_rights,
        ]

    def _lose_answers(self) -> None:
        self.pick_machine().habits = TROUBLE

    def _crash_web(self) -> None:
        self.world.rng.choice(self.webs).crash()

    def _pause_web(self) -> None:
        self.world.rng.choice(self.webs).process.pause(self.world.random_time(2.0))

    def _stand_web(self) -> None:
        process = self.world.rng.choice(self.webs).process
        (process.pause if self.stored.linear else process.stand)(self.world.random_time(2.0))

    def heal(self) -> None:
        self.stored.faults = Faults(slow=self.stored.faults.slow)
        for web in self.webs:
            web.process.paused_until = 0.0
        for machine in self.machines:
            machine.habits = Habits()
        super().heal()

    def _is_seen(self, place: str, owner: int) -> bool:
        return False

"""Groups of the service: the real service and the real sessions of consumers, over a simulated store and network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from msgspec import structs

from qdo.coordination import ServiceCoordinator
from queuey.access import Caller, Grant
from queuey.client import AsyncClient
from queuey.groups.state import Credential
from tests.sim.groups.machine import Machine
from tests.sim.groups.served.client import GroupClient
from tests.sim.groups.served.history import ServiceHistory
from tests.sim.groups.service import ServiceClient
from tests.sim.groups.storm import Storm
from tests.sim.groups.tree import TIMEOUT, TreeLink
from tests.sim.service_groups.network import Habits
from tests.sim.service_groups.stored import APPLICATION, GROUP, Faults, Stored
from tests.sim.service_groups.web import Web

RESTS = 15.0
"""Max seconds for which plans rest, requests of the storm may still arrive, and clocks let a session last longer."""
TROUBLE = Habits(repeats=0.05, loses=0.03)


class ServiceStorm(Storm):
    """One history of a group of the service."""

    history: ServiceHistory

    def _make_history(self) -> ServiceHistory:
        rng = self.world.rng
        linear = rng.random() < 0.3
        slack = 1.0 if linear else rng.choice((0.25, 1.0))
        faults = Faults(failing=rng.choice((0, 0.02)), hesitant=rng.choice((0, 0.004)))
        if not linear:
            faults = replace(faults, lost=rng.choice((0, 0.03)), late=rng.choice((0, 0.1)), lacking=0.05)
        self.stored = Stored(self.world, faults, linear=linear, slack=slack)
        self.uids: dict[str, int] = {}
        history = ServiceHistory(self.service, self.stored)
        self.present: dict[bytes, Credential | None] = {}
        history.rules.rights = self.present
        history.rules.grace = True
        offsets = (0.0,) if linear else (-0.4 * slack, 0.0, 0.4 * slack)
        self.webs = [Web(self, rng.choice(offsets)) for _ in range(rng.choice((1, 2, 3)))]
        return history

    @property
    def calm(self) -> float:
        return super().calm + RESTS

    def coordinate(self, machine: Machine, links: list[TreeLink]) -> ServiceCoordinator:
        client = ServiceClient(
            self.service, lambda: machine.key, lambda: not machine.no_service, GroupClient(self, machine)
        )
        times = {"revoke_timeout": self.settings.revoke_timeout, "grace": self.settings.grace}
        return ServiceCoordinator(
            cast("AsyncClient", client), GROUP, session_timeout=TIMEOUT, clock=lambda: self.world.now, **times
        )

    def session_of(self, machine: Machine, links: list[TreeLink]) -> int:
        return max(number for number, loop in self.history.loops.items() if loop is machine.loop)

    def ended(self, machine: Machine) -> None:
        for number, life in enumerate(self.history.lives_of):
            if self.history.loops[number] is machine.loop:
                self.history.end(life)

    def credential(self, machine: Machine) -> Credential:
        """Returns the credential of a machine. Machines of one name have the same."""
        grant = Grant(APPLICATION, frozenset({"read", "claim"}), machine.key.patterns)
        credential = Credential(machine.name.encode(), Caller(grants=(grant,)))
        self.present[credential.id] = credential
        return credential

    def rights(self, credential: Credential) -> Credential | None:
        return self.present.get(credential.id)

    # Queues

    def create(self, name: str) -> None:
        """Creates a queue, unless one of its name was removed: offsets are tracked by name."""
        if name not in self.uids:
            super().create(name)
            self.uids[name] = self.stored.create(name, len(self.service.queues[name])).uid

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
                self.history.rules.narrowed[before.id] = self.world.now
                for life in self.history.lives_of:
                    life.excused = life.excused or life.credential.id == before.id

    # Faults

    def _list_faults(self) -> Sequence[Callable[[], None]]:
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

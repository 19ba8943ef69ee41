"""The history of a group of the service: its own rules O1 to O7, and what members do with messages."""

from __future__ import annotations

from qdo.partitions import Partition
from queuey.client import Message
from queuey.model import ids
from queuey.model.rights import MemberCredential
from tests.sim.groups.history import History, Stay, place_of
from tests.sim.groups.machine import Machine
from tests.sim.groups.served.rules import History as Rules
from tests.sim.groups.served.rules import Life
from tests.sim.groups.served.stored import Contents, Faults, OffsetsChange, Rows, Stored
from tests.sim.groups.service import APPLICATION, STORE, Service
from tests.sim.world import World


class ServiceHistory(History):
    """One history.

    Attributes:
        rules: Checks O1 to O7 where state and offsets are stored.
        lives_of: The memberships by the number of their session.
    """

    def __init__(self, service: Service, stored: Stored) -> None:
        super().__init__(service)
        self.rules = Rules(stored)
        self.rules.wrong = self.wrong
        self.lives_of: list[Life] = []
        self.counts = self.rules.counts
        self._stored = stored
        stored.observer = self

    def forget_world(self) -> None:
        super().forget_world()
        stored = Stored(World(0), Faults(), linear=True, slack=0.0)
        self.counts, self.rules, self._stored = self.rules.counts, Rules(stored), stored

    @property
    def now(self) -> float:
        return self._stored.world.now

    def begin(self, machine: Machine, number: int, credential: MemberCredential, instance: str, end: float) -> Life:
        """Records that a member has joined. Its session is its number in ``lives_of``."""
        life = Life(number, self.rules.born, credential, instance, end)
        self.names[len(self.lives_of)], self.loops[len(self.lives_of)] = machine.name, machine.loop
        self.lives_of.append(life)
        self.rules.lives.append(life)
        return life

    def end(self, life: Life, *, left: bool = False, may_go: bool = False) -> None:
        life.ended, life.left, life.may_go = True, life.left or left, life.may_go or may_go
        life.holds.clear()

    def lives(self, session: int) -> bool:
        life = self.lives_of[session]
        return not life.ended and not life.excused and life.end > self.now

    def group_changed(self, before: Contents | None, after: Contents | None) -> None:
        self.rules.group_changed(before, after)

    def offsets_changed(self, uid: int, before: Rows, after: Rows, deed: OffsetsChange) -> None:
        """Checks a change by the service's rules, and tracks offsets and, unless the queue was removed, owners."""
        self.rules.offsets_changed(uid, before, after, deed)
        is_there = self.rules.queue_of(uid) is not None
        if not is_there and self._stored.names_of[uid] in self._stored.queues:
            return  # another queue of the name is there now
        for number, row in after.items():
            place = f"{STORE}/{APPLICATION}/{self._stored.names_of[uid]}/{number}"
            former = self.owners.pop(place, None)
            life = self.rules.life_of(row.owner, row.epoch) if row.owner and is_there else None
            if life is not None:
                self.owners[place] = self.lives_of.index(life)
            if former is not None and self.lives_of[former].excused and self.owners.get(place) != former:
                self.excuse(place, former)
            if row.position is not None and row != before.get(number):
                identifier = ids.to_hex(row.position)
                if not is_there:
                    self.offsets[place] = identifier
                elif identifier != self.offsets.get(place):
                    owner = self.owners.get(place)
                    self.check_offset(-1 if owner is None else owner, place, identifier, {owner})

    def begin_handling(self, name: str, stay: Stay, partition: Partition, message: Message, at: float) -> None:
        """Records that a member begins a message; in the partition, by its own count, it may still work (O1)."""
        super().begin_handling(name, stay, partition, message, at)
        life = self.lives_of[stay.session]
        name = partition.queue.name
        places = {*life.holds, *(place for place, moment in life.lost.items() if moment == self.now)}
        held = any(self._stored.names_of[uid] == name and number == partition.number for uid, number in places)
        if name in self._stored.queues and (not held or life.end <= self.now):
            self.rules.record_violation(f"O1: {life.number} begins a message of {place_of(partition)}")

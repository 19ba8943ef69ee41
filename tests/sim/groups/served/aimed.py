"""Histories aimed at mechanisms of the service that ordinary histories need too rarely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from queuey.model import ids
from queuey.model.errors import NotAllowed
from queuey.model.messages import OffsetChange
from queuey.model.rights import MemberCredential
from tests.sim.groups.history import History
from tests.sim.groups.machine import Machine
from tests.sim.groups.network import Habits
from tests.sim.groups.served.scripted import ScriptedMember
from tests.sim.groups.served.stored import APPLICATION, GROUP, Faults
from tests.sim.groups.served.storm import ANYBODY, ServiceStorm
from tests.sim.groups.storm import KEYS
from tests.sim.playing import NAMES

JUDGED = ("O", "program", "rights", "balance")
"""The rules that hold although offsets are recorded and deleted from outside, and queues are recreated."""


class Aimed(ServiceStorm):
    """Scripted programs on Cassandra, with small clock differences."""

    seconds, between, posting = 10.0, 2.0, 0.15
    programs, sizes = (ScriptedMember,), (2, 3, 3, 4)
    keys = KEYS[:1]
    session, linear, naming = 2.0, 0.0, 1.0
    slacks: Sequence[float] = (0.25,)
    troubles, habits = Faults(), Habits(pace=0.2, hurry=0.1)

    def draw_faults(self, *, linear: bool) -> Faults:
        return self.troubles

    def draw_habits(self) -> Habits:
        return self.habits

    def list_faults(self) -> Sequence[Callable[[], None]]:
        return [self._leave_and_restart, self._leave_and_restart, self._crash]

    def judge(self) -> list[str]:
        return [text for text in super().judge() if text.startswith(JUDGED)]


class Changing(Aimed):
    """Everything that may happen: queues are purged and recreated, keys revoked, offsets recorded and deleted."""

    seconds, between = 14.0, 2.5
    session, linear, naming = 3.0, 0.3, 0.7
    slacks = (0.25, 0.5, 2.0)

    def __init__(self, seed: int) -> None:
        self.revoked: set[bytes] = set()
        super().__init__(seed)
        self.present[ANYBODY.id] = ANYBODY

    def run(self) -> History:
        history = super().run()
        history.wrong = [text for text in history.wrong if text.startswith(JUDGED)]
        return history

    def draw_faults(self, *, linear: bool) -> Faults:
        rng = self.world.rng
        faults = Faults(failing=rng.choice((0, 0.03)), hesitant=rng.choice((0, 0.004)))
        if linear:
            return faults
        return replace(
            faults,
            lost=rng.choice((0, 0.05)),
            stuck=rng.choice((0, 0.05)),
            late=rng.choice((0, 0.1)),
            lacking=rng.choice((0, 0.1)),
            reading=rng.choice((0, 0, 0.02)),
            slow=rng.choice((0.003, 0.02)),
        )

    def draw_habits(self) -> Habits:
        rng = self.world.rng
        trouble = rng.choice((0.0, 0.0, 1.0))
        return Habits(
            pace=rng.choice((0.3, 1.0)),
            hurry=rng.choice((0.05, 0.6)),
            deaf=rng.random() < 0.1,
            repeats=trouble * rng.choice((0.05, 0.2)),
            loses=trouble * rng.choice((0.02, 0.1)),
            late=trouble * rng.choice((0.02, 0.1)),
            patience=rng.choice((1.5, 1.5, 15.0)),
        )

    def credential(self, machine: Machine) -> MemberCredential:
        credential = super().credential(machine)
        if credential.id in self.revoked:
            self.present[credential.id] = None
            raise NotAllowed("the key was revoked")
        return credential

    def list_faults(self) -> Sequence[Callable[[], None]]:
        return [
            *super().list_faults(),
            *[self._crash_web, self._pause_web, self._stand_web, self._pause],
            *[self._cut_service] * 2,
            *[self._change_queue] * 2,
            *[self._drain, self._replace, self.change_rights, self._revoke],
            *[self._record_offset, self._stop_all],
        ]

    def _change_queue(self) -> None:
        """Creates a missing queue; otherwise adds a partition, purges or removes it. Most removed queues come back."""
        rng, name = self.world.rng, self.world.rng.choice(NAMES)
        queue = self.stored.queues.get(name)
        if queue is None:
            self.recreate(name)
        elif (choice := rng.random()) < 0.3:
            self.add_partition()
        elif choice < 0.5:
            qid, version = 1000 + next(self.stored.tokens), next(self.stored.tokens)
            self.stored.queues[name] = structs.replace(queue, qid=qid, version=version)
        else:
            self.remove(name)
            if rng.random() < 0.7:
                self.world.after(rng.random() * rng.choice((0.1, 6.0)), lambda: self._recreate_if_missing(name))

    def _recreate_if_missing(self, name: str) -> None:
        if name not in self.stored.queues:
            self.recreate(name)

    def _drain(self) -> None:
        machine = self.pick_machine()
        if machine.up and isinstance(machine.member, ScriptedMember):
            machine.member.leaving = True
            self._restart_after_leaving(machine)

    def _revoke(self) -> None:
        """Revokes the key of a machine for a while. Its lives are excused for errors."""
        machine = self.pick_machine()
        key = machine.name.encode()

        def restore() -> None:
            self.revoked.discard(key)
            self.credential(machine)
            self.excuse_lives(key)

        self.revoked.add(key)
        self.present[key] = None
        self.excuse_lives(key)
        self.world.after(self.world.rng.random() * 4, restore)

    def _record_offset(self) -> None:
        rng, web, name = self.world.rng, self.world.rng.choice(self.webs), self.world.rng.choice(sorted(self.uids))
        position = (ids.EPOCH_TICKS + rng.choice((1, 50)), 0)
        web.run(web.record(name, ANYBODY, [OffsetChange(rng.choice((1, 2)), position)]), lambda _value, _error: None)

    def _stop_all(self) -> None:
        for machine in self.machines:
            machine.leave()
            self._restart_after_leaving(machine)
        for deed in (self._record_offset, self._forget_offsets, self._forget_offsets):
            self.world.after(self.world.rng.random() * 3, deed)

    def _forget_offsets(self) -> None:
        """Forgets the offsets of a random queue, or the whole group."""
        rng, web = self.world.rng, self.world.rng.choice(self.webs)
        call: Any = web.forget(rng.choice(sorted(self.uids)), ANYBODY)
        if rng.random() < 0.5:
            call.close()
            call = web.groups.forget(APPLICATION, GROUP)
        web.run(call, lambda _value, _error: None)


class Generous(Aimed):
    """Members give back partitions that no other member waits for, and requests are repeated late."""

    session = 5.0
    habits = Habits(pace=0.3, hurry=0.1, generous=0.1, repeats=0.5)


class Deaf(Aimed):
    """A member may never give back what others wait for."""

    def draw_habits(self) -> Habits:
        return Habits(deaf=self.world.rng.random() < 0.5)

    def heal(self) -> None:
        """Ends all faults, but leaves members deaf."""
        deaf = [machine.habits.deaf for machine in self.machines]
        super().heal()
        for machine, before in zip(self.machines, deaf, strict=True):
            machine.habits = replace(machine.habits, deaf=before)


class Lagging(Aimed):
    """Plain writes reach most replicas late."""

    troubles = Faults(late=0.7, slow=0.01)


class Dying(Aimed):
    """Processes crash after they have planned."""

    between = 5.0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.history.rules.planned = self._crash_all

    def list_faults(self) -> Sequence[Callable[[], None]]:
        return [self._leave_and_restart]

    def _crash_all(self) -> None:
        for web in self.webs:
            self.world.after(0.004, web.crash)

    def heal(self) -> None:
        self.history.rules.planned = lambda: None
        super().heal()


class Standing(Aimed):
    """Machines stop together with their clocks, and soon afterwards a member is cut off."""

    between, session, processes = 4.0, 5.0, (2,)

    def list_faults(self) -> Sequence[Callable[[], None]]:
        return [self._stand_and_cut]

    def _stand_and_cut(self) -> None:
        rng = self.world.rng
        rng.choice(self.webs).process.stand(3.0)
        self.world.after(3.0 + rng.random() * 0.3, self._cut)

    def _cut(self) -> None:
        self.pick_machine().cut = self.world.now + 8.0

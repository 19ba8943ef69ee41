"""Histories aimed at mechanisms that ordinary histories need too rarely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tests.sim.service_groups.members import Member
from tests.sim.service_groups.network import Habits
from tests.sim.service_groups.stored import Faults
from tests.sim.service_groups.storm import Storm


class Aimed(Storm):
    """On Cassandra, with small clock differences."""

    session, revoke, slack = 2000, 1500, 0.25

    def __init__(self, seed: int) -> None:
        super().__init__(seed, linear=False)

    def draw_faults(self, *, linear: bool) -> Faults:
        return Faults()

    def draw_habits(self) -> Habits:
        return Habits(pace=0.2, hurry=0.1)

    def choose_disturbances(self) -> list[Callable[[], None]]:
        return [self.rng.choice((self._leave, self._leave, self._crash_member)) for _ in range(5)]


class Restless(Aimed):
    """Members come and go all the time, and processes stop briefly between two calls."""

    session, revoke = 6000, 4000

    def draw_faults(self, *, linear: bool) -> Faults:
        return Faults(lost=0.03, hesitant=0.02, slow=0.02)

    def draw_habits(self) -> Habits:
        return Habits(pace=0.2, hurry=0.2, repeats=0.2, late=0.05)

    def choose_disturbances(self) -> list[Callable[[], None]]:
        return [self.rng.choice((self._leave, self._leave, self._crash_member, self._replace)) for _ in range(12)]


class Generous(Aimed):
    """Members give back partitions that no other member waits for, and requests are repeated late."""

    session = 5000

    def draw_habits(self) -> Habits:
        return Habits(pace=0.3, hurry=0.1, generous=0.1, repeats=0.5)


class Deaf(Aimed):
    """A member may never give back what others wait for."""

    def draw_habits(self) -> Habits:
        return Habits(deaf=self.rng.random() < 0.5)

    def end_faults(self) -> None:
        """Ends all faults, but leaves members deaf."""
        habits = [member.habits for member in self.members]
        super().end_faults()
        for member, before in zip(self.members, habits, strict=True):
            member.habits = replace(member.habits, deaf=before.deaf)


class Lagging(Aimed):
    """Plain writes reach most replicas late."""

    def draw_faults(self, *, linear: bool) -> Faults:
        return Faults(late=0.7, slow=0.01)


class Hesitant(Aimed):
    """Processes stop after they have read the sessions."""

    processes = 3

    def draw_faults(self, *, linear: bool) -> Faults:
        return Faults(reading=0.1)


class Dying(Aimed):
    """Processes crash after they have planned."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.history.planned = self._crash_all

    def choose_disturbances(self) -> list[Callable[[], None]]:
        return [self._leave] * 2

    def _crash_all(self) -> None:
        for web in self.webs:
            self.world.after(0.004, web.crash)

    def end_faults(self) -> None:
        self.history.planned = lambda: None
        super().end_faults()


class Standing(Aimed):
    """Machines stop together with their clocks, and soon afterwards a member is cut off."""

    session, processes = 5000, 2

    def choose_disturbances(self) -> list[Callable[[], None]]:
        return [self._stand_and_cut] * 3

    def _stand_and_cut(self) -> None:
        rng = self.rng
        rng.choice(self.webs).process.stand(3.0)
        self.world.after(3.0 + rng.random() * 0.3, partial(self._cut, rng.choice(self.members)))

    def _cut(self, member: Member) -> None:
        member.cut = self.world.now + 8.0


class Apart(Standing):
    """Clocks differ as much as allowed, and a member is cut off."""

    slack = 2.0

    def _stand_and_cut(self) -> None:
        self._cut(self.rng.choice(self.members))


class Forgetful(Aimed):
    """Answers are lost."""

    session = 8000
    processes = 2

    def draw_habits(self) -> Habits:
        return Habits(pace=1.0, loses=0.3)

    def choose_disturbances(self) -> list[Callable[[], None]]:
        return [self.rng.choice((self._leave, self._crash_member, self._replace)) for _ in range(16)]


class Listing(Aimed):
    """Members ask for queues by patterns, and lists may lack some queues."""

    def draw_wishes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), ("*",)

    def draw_faults(self, *, linear: bool) -> Faults:
        return Faults(lacking=0.3)


class Recreated(Aimed):
    """Only queues change: they are recreated."""

    def choose_disturbances(self) -> list[Callable[[], None]]:
        return [self._recreate_all] * 2

    def _recreate_all(self) -> None:
        for name, queue in list(self.stored.queues.items()):
            self.create(name, queue.partitions)


class Returning(Aimed):
    """Static members leave and come back."""

    grace = 3000

"""Histories that aim at mechanisms which others need too seldom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.sim.service_groups.members import Habits
from tests.sim.service_groups.stored import Faults
from tests.sim.service_groups.storm import Storm


class Restless(Storm):
    """Members come and go all the time, requests are late and repeated, and processes stand still for short."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, linear=False)
        self.session, self.revoke = 6000, 4000

    def faults(self, *, linear: bool) -> Faults:
        """See the base class."""
        return Faults(lost=0.03, hesitant=0.02, slow=0.02)

    def habits(self) -> Habits:
        """See the base class."""
        return Habits(pace=0.2, hurry=0.2, repeats=0.2, late=0.05)

    def deeds(self) -> list[Callable[[], None]]:
        """See the base class."""
        return [self.rng.choice((self._leave, self._leave, self._crash_member, self._replace)) for _ in range(12)]


class Deaf(Storm):
    """A member never gives back what others wait for."""

    def habits(self) -> Habits:
        """See the base class."""
        return Habits(deaf=self.rng.random() < 0.5)

    def calm(self) -> None:
        """See the base class. It goes on so."""
        habits = [member.habits for member in self.members]
        super().calm()
        for member, before in zip(self.members, habits, strict=True):
            member.habits = replace(member.habits, deaf=before.deaf)

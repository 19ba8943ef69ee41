"""What clients saw of claims, and what must hold of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from queuey.ids import Position

Outcome = Literal["done", "superseded", "none", "unknown", ""]
"""What a client was told of an acknowledgement; empty: nothing."""


@dataclass
class Delivery:
    """A message that a client was given. Times are true seconds.

    Attributes:
        number: The entry that delivered it.
        asked, answered: When the client asked for messages, and was given them.
        lives: From when to when the client knew that it had the claim; renewals add to it.
        dropped: When the client began to end the claim.
    """

    position: Position
    number: int
    asked: float
    answered: float
    lives: list[tuple[float, float]]
    dropped: float | None = None


@dataclass
class Acknowledging:
    """An acknowledgement that a client sent."""

    position: Position
    asked: float
    answered: float = 0.0
    outcome: Outcome = ""


@dataclass
class History:
    """Everything that clients saw."""

    acknowledged: set[Position] = field(default_factory=set)
    """Messages whose post was acknowledged."""
    deliveries: list[Delivery] = field(default_factory=list)
    acknowledgings: list[Acknowledging] = field(default_factory=list)
    calm: float = 0.0
    """When the faults ended; from then on everything is claimed and acknowledged until nothing is left."""

    def violations(self) -> list[str]:
        """Says which guarantees do not hold."""
        return [*self._two_at_once(), *self._after_the_end(), *self.lost()]

    def _two_at_once(self) -> list[str]:
        """G4: while a claim lives nobody else has the message; a claim that is given lives."""
        found = []
        by_position: defaultdict[Position, list[tuple[float, float, int]]] = defaultdict(list)
        for one in self.deliveries:
            for start, end in one.lives:
                if end <= start:
                    found.append(f"G4: {one} was over when it was given")
                ended = end if one.dropped is None else min(end, one.dropped)
                if ended > start:
                    by_position[one.position].append((start, ended, one.number))
        for position, lives in by_position.items():
            lives.sort()
            latest: tuple[float, float, int] | None = None
            for one_life in lives:
                if latest is not None and one_life[0] < latest[1] and one_life[2] != latest[2]:
                    found.append(f"G4: {position} had two claims at once: {latest} and {one_life}")
                if latest is None or one_life[1] > latest[1]:
                    latest = one_life
        return found

    def _after_the_end(self) -> list[str]:
        """G5: what was acknowledged is not given to anybody who asks later."""
        ends: dict[Position, float] = {}
        for one in self.acknowledgings:
            if one.outcome == "done":
                ends[one.position] = min(one.answered, ends.get(one.position, one.answered))
        return [
            f"G5: {one} was given after it had been acknowledged at {ends[one.position]}"
            for one in self.deliveries
            if one.position in ends and one.asked > ends[one.position]
        ]

    def lost(self) -> list[str]:
        """G6: what was posted is given until somebody may have acknowledged it."""
        given = {one.position for one in self.deliveries}
        late = {one.position for one in self.deliveries if one.answered > self.calm}
        perhaps = {one.position for one in self.acknowledgings if one.outcome in {"done", "unknown", ""}}
        return [
            f"G6: {position} was never given"
            if position not in given
            else f"G6: {position} was not given again, though nobody can have acknowledged it"
            for position in sorted(self.acknowledged)
            if position not in given or (position not in perhaps and position not in late)
        ]

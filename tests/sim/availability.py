"""When messages were free, by what was stored, and whether claims were told the truth about it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from queuey import ids
from queuey.claims import State, decode_entry
from queuey.ids import Position
from queuey.messages import LogEntry

Span = tuple[float, float]
"""From one true time to another."""
TICK = 0.001
"""Seconds by which clocks round."""


@dataclass
class EmptyAnswer:
    """A try of a claim that found no message and did not fail; then the claim waits, or the client is told.

    Attributes:
        asked, answered: When the try began, and when it ended (true seconds).
        offset: Seconds that the clock of the process was ahead.
    """

    asked: float
    answered: float
    offset: float


@dataclass
class Stored:
    """What was stored, and when.

    Attributes:
        partitions: Of the queue.
        most: Deliveries of a message; 0: endlessly.
        margin: Seconds by which a claim is longer for other processes.
        entries: Of each partition's log, with the time since when every reader saw them.
        readable: When every read began to see a message of a partition, and when none did any more.
        shown: When a read saw a message of a partition that lies behind all that any read had seen before.
    """

    partitions: int = 1
    most: int = 0
    margin: float = 0.0
    entries: dict[int, list[tuple[float, LogEntry]]] = field(default_factory=dict)
    readable: dict[int, dict[Position, Span]] = field(default_factory=dict)
    shown: dict[int, list[tuple[float, Position]]] = field(default_factory=dict)

    def write(self, partition: int, position: Position, seen: float) -> None:
        """Notes that a message is written, and from when on every read sees it."""
        self.readable.setdefault(partition, {})[position] = (seen, math.inf)

    def remove(self, partition: int, position: Position, now: float) -> None:
        """Notes that a message is removed, unless it was before."""
        seen, gone = self.readable[partition][position]
        self.readable[partition][position] = (seen, min(now, gone))

    def show(self, partition: int, position: Position, now: float) -> None:
        """Notes that a read saw a message."""
        shown = self.shown.setdefault(partition, [])
        if not shown or position > shown[-1][1]:
            shown.append((now, position))

    def states(self, partition: int) -> Iterator[tuple[Span, State]]:
        """Gives the states of a partition, each with the time for which it was that."""
        state, since = State(), 0.0
        for at, one in self.entries.get(partition, ()):
            if one.number == state.number + 1:
                yield (since, at), state
                state.apply(one.number, decode_entry(one.body))
                since = at
        yield (since, math.inf), state

    def free(self, partition: int, offset: float) -> list[Span]:
        """Returns when there was a message that a process could claim, whichever it was, in order.

        Args:
            partition: Where.
            offset: Seconds that the clock of the process is ahead.
        """
        found: list[Span] = []
        readable = self.readable.get(partition, {})
        ahead = {position for position, (seen, _) in readable.items() if self._is_ahead(partition, position, seen)}
        for (since, until), state in self.states(partition):
            for position, (seen, gone) in readable.items():
                claim = state.outstanding.get(position)
                if claim is not None and (not self.most or claim.deliveries < self.most):
                    over = claim.expires / 1000 + self.margin - offset + TICK if claim.expires else 0.0
                elif position in ahead and not state.is_known(position):
                    over = ids.ticks_to_seconds(position[0]) - offset + TICK
                else:
                    continue
                span = max(since, seen, over), min(until, gone)
                if span[0] < span[1]:
                    found.append(span)
        return sorted(found)

    def _is_ahead(self, partition: int, position: Position, seen: float) -> bool:
        """Returns whether a message was readable before any read saw one behind it. Scans may find others later."""
        shown = self.shown.get(partition, [])
        before = bisect_left(shown, (seen,))
        return not before or shown[before - 1][1] < position

    def false_empties(self, answers: list[EmptyAnswer]) -> list[str]:
        """An empty answer says that each partition had a moment, while the claim lasted, without a free message."""
        known = {
            (partition, offset): self.free(partition, offset)
            for offset in {answer.offset for answer in answers}
            for partition in range(1, self.partitions + 1)
        }
        return [
            f"empty: {answer}, and partition {partition} always had a free message"
            for answer in answers
            for partition in range(1, self.partitions + 1)
            if _covers(known[partition, answer.offset], answer)
        ]

    def over_delivered(self) -> list[str]:
        """No message is delivered more often than its queue allows."""
        if not self.most:
            return []
        return [
            f"limit: {position} was delivered {claim.deliveries} times"
            for partition in range(1, self.partitions + 1)
            for _, state in self.states(partition)
            for position, claim in state.outstanding.items()
            if claim.number == state.number and claim.deliveries > self.most
        ]


def _covers(spans: list[Span], answer: EmptyAnswer) -> bool:
    """Returns whether spans, in order, leave nothing out of the time of a claim."""
    reached = answer.asked
    for since, until in spans:
        if since > reached:
            return False
        reached = max(reached, until)
        if reached >= answer.answered:
            return True
    return False

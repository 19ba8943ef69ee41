"""When messages were free, by what was stored, and whether claims were told the truth about it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from queuey import ids
from queuey.claims.entries import decode_entry
from queuey.claims.state import State
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
        keys: In an ordered queue, those of messages whose posts were acknowledged.
        limited: In a queue that limits claims by key, the same.
        per_key: How many messages of one key may be claimed at once; 0: there is no limit.
        shares: How many messages of each partition may be; 0: there is no limit.
        delay: Seconds that the horizon stays behind the clock.
    """

    partitions: int = 1
    most: int = 0
    margin: float = 0.0
    entries: dict[int, list[tuple[float, LogEntry]]] = field(default_factory=dict)
    readable: dict[int, dict[Position, Span]] = field(default_factory=dict)
    shown: dict[int, list[tuple[float, Position]]] = field(default_factory=dict)
    keys: dict[Position, str] = field(default_factory=dict)
    limited: dict[Position, str] = field(default_factory=dict)
    per_key: int = 0
    shares: dict[int, int] = field(default_factory=dict)
    delay: float = 0.0

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
        if self.keys:
            return self._free_in_order(partition, offset)
        if self.per_key:
            ahead = set(readable)
        else:
            ahead = {position for position, (seen, _) in readable.items() if self._is_ahead(partition, position, seen)}
        for (since, until), state in self.states(partition):
            for position, (seen, gone) in readable.items():
                claim = state.outstanding.get(position)
                if claim is not None and (not self.most or claim.deliveries < self.most):
                    over = claim.expires / 1000 + self.margin - offset + TICK if claim.expires else 0.0
                elif position in ahead and not state.is_known(position):
                    over = ids.ticks_to_seconds(position[0]) - offset + TICK
                    over += self.delay if self.per_key else 0.0
                else:
                    continue
                room = self._room(partition, position, state, offset)
                span = max(since, seen, over, room), min(until, gone)
                if span[0] < span[1]:
                    found.append(span)
        return sorted(found)

    def _room(self, partition: int, position: Position, state: State, offset: float) -> float:
        """Returns from when on limits leave a place for a message, while a state lasts."""
        working = {place: claim for place, claim in state.outstanding.items() if place not in state.resting}
        ends = {place: claim.expires / 1000 + self.margin - offset + TICK for place, claim in working.items()}
        room, key = 0.0, self.limited.get(position)
        for most, some in (
            (self.shares.get(partition, 0), list(ends.values())),
            (self.per_key if key else 0, [end for place, end in ends.items() if self.limited.get(place) == key]),
        ):
            if most and len(some) >= most:
                room = max(room, sorted(some)[-most])
        return room

    def _free_in_order(self, partition: int, offset: float) -> list[Span]:
        """Returns the same of an ordered queue: a message that is the first of its key that is not done."""
        found: list[Span] = []
        readable = self.readable.get(partition, {})
        here = sorted(position for position in self.keys if position in readable)
        for (since, until), state in self.states(partition):
            undone = [position for position in here if not state.is_done(position)]
            firsts = {self.keys[position]: position for position in reversed(undone)}
            for key, position in firsts.items():
                claims = [
                    state.outstanding[one] for one in undone if one in state.outstanding and self.keys[one] == key
                ]
                first = state.outstanding.get(position)
                if first is not None and self.most and first.deliveries >= self.most:
                    continue
                over = [claim.expires / 1000 + self.margin - offset + TICK for claim in claims if claim.expires]
                below = ids.ticks_to_seconds(position[0]) + self.delay - offset + TICK
                seen, gone = readable[position]
                room = self._room(partition, position, state, offset)
                span = max(since, seen, below, room, *over), min(until, gone)
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
            f"{answer}, and partition {partition} always had a free message"
            for answer in answers
            for partition in range(1, self.partitions + 1)
            if _covers(known[partition, answer.offset], answer)
        ]

    def over_delivered(self) -> list[str]:
        """No message is delivered more often than its queue allows."""
        if not self.most:
            return []
        return [
            f"{position} was delivered {claim.deliveries} times"
            for partition in range(1, self.partitions + 1)
            for _, state in self.states(partition)
            for position, claim in state.outstanding.items()
            if claim.number == state.number and claim.deliveries > self.most
        ]

    def out_of_order(self) -> list[str]:
        """In an ordered queue a message is delivered only after, or together with, the earlier ones of its key.

        Those are done, or gone, or given to the same caller by the same entry.
        """
        return [
            f"entry {one.number} gives {position} of partition {partition} before {earlier}"
            for partition, log in self.entries.items()
            for at, one, state in _applied(log)
            for _, positions in decode_entry(one.body).claims
            for position in positions
            for earlier in self._earlier(partition, position, at)
            if earlier not in positions and not state.is_done(earlier)
        ]

    def _earlier(self, partition: int, position: Position, at: float) -> list[Position]:
        """Returns the messages before another one of its key that are not gone at a time."""
        key, there = self.keys.get(position), self.readable.get(partition, {})
        return [one for one, of in self.keys.items() if of == key and one < position and there[one][1] > at]


def _applied(log: list[tuple[float, LogEntry]]) -> Iterator[tuple[float, LogEntry, State]]:
    """Gives each entry of a log with the time since when every reader saw it, and the state that it makes."""
    state = State()
    for at, one in log:
        if one.number == state.number + 1:
            state.apply(one.number, decode_entry(one.body))
            yield at, one, state


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

"""When messages were free, derived from what was stored, and whether claims were told the truth about it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from queuey.claims.rules.entries import ClaimEntry, decode_entry
from queuey.claims.rules.partition_state import State
from queuey.model import ids
from queuey.model.ids import Position
from queuey.model.messages import LogEntry

Span = tuple[float, float]
"""Start and end, in true time."""
TICK = 0.001
"""Rounding of clocks, in seconds."""


@dataclass
class EmptyAnswer:
    """A claim attempt that found no message and did not fail. Afterwards the claim waits, or the client is answered.

    Attributes:
        asked, answered: When the attempt began, and when it ended (true seconds).
        offset: Seconds by which the clock of the process is ahead.
    """

    asked: float
    answered: float
    offset: float


@dataclass
class Stored:
    """What was stored, and when.

    Attributes:
        partitions: Number of partitions of the queue.
        max_deliveries: Max deliveries of a message; 0: unlimited.
        margin: Seconds by which a claim lasts longer for other processes.
        entries: The log entries of each partition, with the time from which every reader saw them.
        readable: From when every read saw a message of a partition, and from when no read did.
        shown: When a read saw a message of a partition above all that any read had seen before.
        keys: In an ordered queue, the keys of messages whose posts were acknowledged.
        limited: In a queue that limits claims by key, the keys of such messages.
        per_key: Max claimed messages of one key; 0: no limit.
        shares: Max claimed messages of each partition; 0: no limit.
        delay: Seconds by which the horizon stays behind the clock.
    """

    partitions: int = 1
    max_deliveries: int = 0
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
        self.readable.setdefault(partition, {})[position] = (seen, math.inf)

    def remove(self, partition: int, position: Position, now: float) -> None:
        """Records that a message was removed. A second removal changes nothing."""
        seen, gone = self.readable[partition][position]
        self.readable[partition][position] = (seen, min(now, gone))

    def show(self, partition: int, position: Position, now: float) -> None:
        """Records that a read saw a message, unless one at or above it was seen before."""
        shown = self.shown.setdefault(partition, [])
        if not shown or position > shown[-1][1]:
            shown.append((now, position))

    def states(self, partition: int) -> Iterator[tuple[Span, State]]:
        """Yields the states of a partition with the time for which each lasted. All are one object, which changes."""
        state, since = State(), 0.0
        for at, entry in self.entries.get(partition, ()):
            if entry.number == state.number + 1:
                yield (since, at), state
                state.apply(entry.number, decode_entry(entry.body))
                since = at
        yield (since, math.inf), state

    def free_spans(self, partition: int, offset: float) -> list[Span]:
        """Returns the times at which a process could claim any message, sorted.

        Args:
            partition: The partition to claim in.
            offset: Seconds by which the clock of the process is ahead.
        """
        spans: list[Span] = []
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
                if claim is not None and (not self.max_deliveries or claim.attempts < self.max_deliveries):
                    free_from = claim.expires / 1000 + self.margin - offset + TICK if claim.expires else 0.0
                elif position in ahead and not state.is_known(position):
                    free_from = ids.ticks_to_seconds(position[0]) - offset + TICK
                    free_from += self.delay if self.per_key else 0.0
                else:
                    continue
                room = self._room(partition, position, state, offset)
                span = max(since, seen, free_from, room), min(until, gone)
                if span[0] < span[1]:
                    spans.append(span)
        return sorted(spans)

    def _room(self, partition: int, position: Position, state: State, offset: float) -> float:
        """Returns from when the limits leave room for a message, while ``state`` lasts."""
        working = {place: claim for place, claim in state.outstanding.items() if place not in state.resting}
        ends = {place: claim.expires / 1000 + self.margin - offset + TICK for place, claim in working.items()}
        room, key = 0.0, self.limited.get(position)
        for limit, ends_of_group in (
            (self.shares.get(partition, 0), list(ends.values())),
            (self.per_key if key else 0, [end for place, end in ends.items() if self.limited.get(place) == key]),
        ):
            if limit and len(ends_of_group) >= limit:
                room = max(room, sorted(ends_of_group)[-limit])
        return room

    def _free_in_order(self, partition: int, offset: float) -> list[Span]:
        """Returns ``free_spans`` of an ordered queue: only the first undone message of each key is free."""
        spans: list[Span] = []
        readable = self.readable.get(partition, {})
        here = sorted(position for position in self.keys if position in readable)
        for (since, until), state in self.states(partition):
            undone = [position for position in here if not state.is_done(position)]
            firsts = {self.keys[position]: position for position in reversed(undone)}
            for key, position in firsts.items():
                claims = [
                    state.outstanding[same] for same in undone if same in state.outstanding and self.keys[same] == key
                ]
                first = state.outstanding.get(position)
                if first is not None and self.max_deliveries and first.attempts >= self.max_deliveries:
                    continue
                over = [claim.expires / 1000 + self.margin - offset + TICK for claim in claims if claim.expires]
                below = ids.ticks_to_seconds(position[0]) + self.delay - offset + TICK
                seen, gone = readable[position]
                room = self._room(partition, position, state, offset)
                span = max(since, seen, below, room, *over), min(until, gone)
                if span[0] < span[1]:
                    spans.append(span)
        return sorted(spans)

    def _is_ahead(self, partition: int, position: Position, seen: float) -> bool:
        """Returns whether a message was readable before any read saw one above it. Scans may find others later."""
        shown = self.shown.get(partition, [])
        before = bisect_left(shown, (seen,))
        return not before or shown[before - 1][1] < position

    def find_false_empties(self, answers: list[EmptyAnswer]) -> list[str]:
        """Returns the empty answers during which a partition had a free message at every moment."""
        spans = {
            (partition, offset): self.free_spans(partition, offset)
            for offset in {answer.offset for answer in answers}
            for partition in range(1, self.partitions + 1)
        }
        return [
            f"{answer}, and partition {partition} always had a free message"
            for answer in answers
            for partition in range(1, self.partitions + 1)
            if _covers(spans[partition, answer.offset], answer)
        ]

    def find_wrong_attempts(self, given_up: Container[Position]) -> list[str]:
        """Returns messages with more attempts than the limit, and dead letters with fewer; see :class:`_Attempts`.

        Args:
            given_up: Messages that workers gave up: they become dead letters after any attempt.
        """
        problems = []
        for log in self.entries.values():
            messages: defaultdict[Position, _Attempts] = defaultdict(_Attempts)
            for _, log_entry in log:
                entry = decode_entry(log_entry.body)
                for position, target, attempts in entry.outs:
                    counted = messages.pop(position, _Attempts()).count
                    is_early = target and position not in given_up and counted < self.max_deliveries
                    if counted != attempts or is_early:
                        problems.append(f"{position} became a dead letter after {counted} attempts, not {attempts}")
                for position in (*entry.finals, *entry.superseded):
                    messages.pop(position, None)
                alone = _apply_to_attempts(entry, messages)
                problems += [
                    f"{position} was suspected and not given alone by entry {log_entry.number}" for position in alone
                ]
                for position in {position for _, positions in entry.claims for position in positions}:
                    if 0 < self.max_deliveries < messages[position].count:
                        problems.append(f"{position} had {messages[position].count} attempts")
        return problems

    def find_out_of_order(self) -> list[str]:
        """Returns the messages of an ordered queue delivered before an earlier one of their key.

        An earlier one must be done, gone, or given to the same caller by the same entry.
        """
        return [
            f"entry {one.number} gives {position} of partition {partition} before {earlier}"
            for partition, log in self.entries.items()
            for at, one, state in _replay_log(log)
            for _, positions in decode_entry(one.body).claims
            for position in positions
            for earlier in self._earlier(partition, position, at)
            if earlier not in positions and not state.is_done(earlier)
        ]

    def _earlier(self, partition: int, position: Position, instant: float) -> list[Position]:
        key, readable = self.keys.get(position), self.readable.get(partition, {})
        return [one for one, of in self.keys.items() if of == key and one < position and readable[one][1] > instant]


@dataclass
class _Attempts:
    """The attempts at a message, counted from the entries of a log alone.

    Attributes:
        earlier: Number of earlier deliveries that count.
        was_delivered, counts: Whether it was delivered, and whether its last delivery counts.
        expires: End of its claim (milliseconds since 1970); 0 without one.
        rests: It was released with a delay.
        suspected: A claim of it has ended without a word.
    """

    earlier: int = 0
    was_delivered: bool = False
    counts: bool = False
    expires: int = 0
    rests: bool = False
    suspected: bool = False

    @property
    def count(self) -> int:
        return self.earlier + self.counts

    @property
    def is_silent(self) -> bool:
        return self.was_delivered and self.expires > 0 and not self.rests


def _apply_to_attempts(entry: ClaimEntry, messages: defaultdict[Position, _Attempts]) -> list[Position]:
    """Applies an entry; returns the suspected messages that it gives together with others."""
    for one in messages.values() if entry.release_all else ():
        has_lapsed = one.is_silent and one.expires < entry.at
        one.suspected = one.suspected or has_lapsed
        one.counts = one.counts and (has_lapsed or not one.is_silent)
        one.expires, one.rests = 0, False
    for position in entry.releases:
        messages[position].expires, messages[position].rests = 0, False
    for expires, positions in entry.renewals:
        for one in map(messages.__getitem__, positions):
            one.counts = one.counts or (one.was_delivered and expires > one.expires)
            one.expires = max(one.expires, expires)
        for position in positions:
            messages[position].rests = position in entry.releases
    for position in entry.unbegun:
        messages[position].counts = False
    together = []
    for expires, positions in entry.claims:
        for position in positions:
            one = messages[position]
            suspected = one.suspected or one.is_silent
            together += [position] if suspected and len(positions) > 1 else []
            messages[position] = _Attempts(
                one.count, was_delivered=True, counts=True, expires=expires, suspected=suspected
            )
    return together


def _replay_log(log: list[tuple[float, LogEntry]]) -> Iterator[tuple[float, LogEntry, State]]:
    """Yields each entry of a log with the time from which every reader saw it, and the state after it.

    The state is one object, which changes.
    """
    state = State()
    for at, entry in log:
        if entry.number == state.number + 1:
            state.apply(entry.number, decode_entry(entry.body))
            yield at, entry, state


def _covers(spans: list[Span], answer: EmptyAnswer) -> bool:
    reached = answer.asked
    for since, until in spans:
        if since > reached:
            return False
        reached = max(reached, until)
        if reached >= answer.answered:
            return True
    return False

"""The rules for claims, checked against what clients of real and simulated services saw.

A rule returns a text for each violation of its docstring.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from queuey.model.ids import Position
from queuey.model.messages import Location
from tests.harness.checking.rules import Limits, Rules
from tests.sim.availability import EmptyAnswer, Stored

Outcome = Literal["done", "final", "again", "superseded", "none", "unknown", ""]
"""The outcome of an acknowledgement that a client was told.

final: it was done before; again: the same, perhaps by this request itself; empty: no answer.
"""
MAX_CLOCK_DIFFERENCE = 1.0
"""Max difference between two clocks, in seconds."""
FINAL_OUTCOMES = frozenset({"done", "final", "again"})


@dataclass
class Delivery:
    """A message that a client was given. Times are true seconds.

    Attributes:
        number: The entry that delivered it.
        asked, answered: When the client asked for messages, and was given them.
        lives: Start and end of the times for which the client knew it had the claim. Renewals append to it.
        dropped: When the client began to end the claim.
        partition: The message's partition.
        kept: The client does not end the claim.
        first: The message was not delivered before.
        renewals: When each renewal in ``lives`` was requested, by its start in ``lives``.
    """

    position: Position
    number: int
    asked: float
    answered: float
    lives: list[tuple[float, float]]
    dropped: float | None = None
    partition: int = 1
    kept: bool = False
    first: bool = False
    renewals: dict[float, float] = field(default_factory=dict)


@dataclass
class Acknowledgement:
    """An acknowledgement that a client sent."""

    position: Position
    asked: float
    answered: float = 0.0
    outcome: Outcome = ""


@dataclass
class ReleaseAllRequest:
    """A request to end all claims."""

    asked: float
    answered: float = math.inf


@dataclass
class ClaimHistory:
    """Everything that clients saw, and what was stored in the end."""

    acknowledged: set[Position] = field(default_factory=set)
    """Messages whose post was acknowledged."""
    due_times: dict[Position, float] = field(default_factory=dict)
    """Due times of delayed messages."""
    bodies: dict[Position, tuple[str, float, float]] = field(default_factory=dict)
    """The bodies of a dedup queue, with the times from which any clock and every clock shows the message."""
    deliveries: list[Delivery] = field(default_factory=list)
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    given_up: list[Acknowledgement] = field(default_factory=list)
    """Messages that a client reported it cannot handle at all."""
    cancelled: list[Acknowledgement] = field(default_factory=list)
    """Messages that an operator cancelled; ``done``: they were removed, or their workers were asked to stop."""
    releases: list[ReleaseAllRequest] = field(default_factory=list)
    letters: dict[Position, float] = field(default_factory=dict)
    """The time at which each dead letter was made."""
    letter_places: Mapping[Position, Collection[Location]] = field(default_factory=dict)
    """The locations of dead letters."""
    empties: list[EmptyAnswer] = field(default_factory=list)
    """Claim attempts that got no message, in a queue without copies."""
    stored: Stored = field(default_factory=Stored)
    """The true messages and logs of the queue."""
    remaining: set[Position] | None = None
    """If acknowledged messages are deleted: the messages that still exist."""
    calm: float = 0.0
    """When the faults ended. From then on everything is claimed and acknowledged until nothing is left."""


def g4(history: ClaimHistory, _: Limits) -> list[str]:
    """While a claim lives, no other client has the message. A claim lives when it is given."""
    problems = [
        f"{one} was over when it was given" for one in history.deliveries for start, end in one.lives if end <= start
    ]
    by_position: defaultdict[Position, list[tuple[float, float, int]]] = defaultdict(list)
    for one, start, ended in _find_held_times(history):
        by_position[one.position].append((start, ended, one.number))
    for position, lives in by_position.items():
        lives.sort()
        latest: tuple[float, float, int] | None = None
        for one_life in lives:
            if latest is not None and one_life[0] < latest[1] and one_life[2] != latest[2]:
                problems.append(f"{position} had two claims at once: {latest} and {one_life}")
            if latest is None or one_life[1] > latest[1]:
                latest = one_life
    return problems


def key_alone(history: ClaimHistory, _: Limits) -> list[str]:
    """In an ordered queue, while a client has a message of a key, no other client has one of the same key."""
    by_key: defaultdict[str, list[tuple[float, float, tuple[int, float, float]]]] = defaultdict(list)
    for one, start, ended in _find_held_times(history):
        if one.position in history.stored.keys:
            claim = one.number, one.asked, one.answered  # the same for messages that a client was given together
            by_key[history.stored.keys[one.position]].append((start, ended, claim))
    return [
        f"{key} had two claims at once: {life} and {other}"
        for key, lives in by_key.items()
        for number, life in enumerate(lives)
        for other in lives[:number]
        if life[2] != other[2] and life[0] < other[1] and other[0] < life[1]
    ]


def order(history: ClaimHistory, _: Limits) -> list[str]:
    """In an ordered queue, messages of one key are first given, and stored as given, in the order of their ids."""
    keys = history.stored.keys
    deliveries = [one for one in history.deliveries if one.position in keys]
    return history.stored.find_out_of_order() + [
        f"{later} came before {one}"
        for one in deliveries
        for later in deliveries
        if one.first
        and keys[one.position] == keys[later.position]
        and one.position < later.position
        and later.number < one.number
    ]


def places(history: ClaimHistory, _: Limits) -> list[str]:
    """No more messages of a key or a partition are claimed at once than the queue allows."""
    stored = history.stored
    groups: defaultdict[tuple[str, int], list[tuple[float, int, Position]]] = defaultdict(list)
    for one, start, ended in _find_held_times(history):
        key = stored.limited.get(one.position)
        own = [(f"key {key}", stored.per_key)] if key else []
        for group in [*own, (f"partition {one.partition}", stored.shares.get(one.partition, 0))]:
            if group[1]:
                # A claim that ends at an instant leaves its place to one that begins then.
                groups[group] += [(start, 1, one.position), (ended, -1, one.position)]
    return [
        f"{name} had {len(positions)} claims at once: {positions}"
        for (name, limit), changes in groups.items()
        for positions in _iterate_claimed(changes)
        if len(positions) > limit
    ]


def _find_held_times(history: ClaimHistory) -> Iterator[tuple[Delivery, float, float]]:
    """Yields each time for which a client certainly had a claim: until it expired, or may have ended before."""
    for one in history.deliveries:
        for start, end in one.lives:
            ended = min([end, *_find_early_ends(history, one, start)])
            if ended > start:
                yield one, start, ended


def _find_early_ends(history: ClaimHistory, one: Delivery, start: float) -> list[float]:
    ends = [] if one.dropped is None else [one.dropped]
    # A claim requested before all claims were ended may be among them, even if its answer came later.
    asked = one.renewals.get(start, one.asked)
    return ends + [max(each.asked, start) for each in history.releases if asked <= each.answered]


def g5(history: ClaimHistory, _: Limits) -> list[str]:
    """A message that was acknowledged, or became a dead letter, is not given to a later request. It is not both."""
    ends = dict(history.letters)
    for one in (*history.acknowledgements, *history.given_up):
        if one.outcome in FINAL_OUTCOMES:
            ends[one.position] = min(one.answered, ends.get(one.position, one.answered))
    # All of these were receipts, so "done" never means that the message has become a dead letter.
    done = {one.position for one in history.acknowledgements if one.outcome in FINAL_OUTCOMES}
    return [
        f"{one} was given after it had been done at {ends[one.position]}"
        for one in history.deliveries
        if one.position in ends and one.asked > ends[one.position]
    ] + [f"{position} became a dead letter and was acknowledged" for position in done & history.letters.keys()]


def cancelled(history: ClaimHistory, _: Limits) -> list[str]:
    """A cancelled message is not given to a later request, and does not become a dead letter."""
    ends = {one.position: one.answered for one in reversed(history.cancelled) if one.outcome in FINAL_OUTCOMES}
    before = {one.position for one in history.cancelled if one.outcome == "final"}
    return [
        f"{one} was given after it had been cancelled at {ends[one.position]}"
        for one in history.deliveries
        if one.position in ends and one.asked > ends[one.position]
    ] + [
        f"{one} became a dead letter after it had been cancelled"
        for one in (ends.keys() & history.letters.keys()) - before
    ]


def delay(history: ClaimHistory, _: Limits) -> list[str]:
    """A delayed message is not given before it is due by some process's clock."""
    return [
        f"{one} was given before it was due at {history.due_times[one.position]}"
        for one in history.deliveries
        if one.answered < history.due_times.get(one.position, 0.0) - MAX_CLOCK_DIFFERENCE
    ]


def dedup(history: ClaimHistory, _: Limits) -> list[str]:
    """A dedup queue gives no copy of a given message, if every clock showed both at that time."""
    # A message whose post was not acknowledged may be gone after it was given.
    unacknowledged = {body for position, (body, _, _) in history.bodies.items() if position not in history.acknowledged}
    problems = []
    firsts = [one for one in history.deliveries if one.first and one.position in history.bodies]
    for one in firsts:
        body = history.bodies[one.position][0]
        for other in firsts:
            text, _began, began = history.bodies[other.position]
            if (
                text == body
                and body not in unacknowledged
                and other.number > one.number
                and began < one.asked - MAX_CLOCK_DIFFERENCE
            ):
                problems.append(f"{other} is a copy of {one}")
    return problems


def outbox(history: ClaimHistory, _: Limits) -> list[str]:
    """A message becomes at most one dead letter."""
    return [f"{was} lies at {places}" for was, places in history.letter_places.items() if len(places) > 1]


def attempts(history: ClaimHistory, _: Limits) -> list[str]:
    """No message has more attempts than allowed, a dead letter has no fewer, and a suspected message is given alone."""
    return history.stored.find_wrong_attempts({one.position for one in history.given_up})


def _stands_for_another(history: ClaimHistory, position: Position, lasting: set[Position]) -> bool:
    """Returns whether another lasting message with this body was delivered or dead-lettered since the post began."""
    body, began, _ = history.bodies[position]
    # A dead letter was delivered, whatever its client was told.
    given = {other: at for other, at in history.letters.items() if history.bodies[other][0] == body}
    for one in history.deliveries:
        if history.bodies[one.position][0] == body:
            given[one.position] = min(one.answered, given.get(one.position, one.answered))
    return any(at >= began and other != position and other in lasting for other, at in given.items())


def on_ack(history: ClaimHistory, _: Limits) -> list[str]:
    """If acknowledged messages are deleted, none of them exists in the end."""
    done = {one.position for one in history.acknowledgements if one.outcome == "done"}
    return [f"{position} was not deleted" for position in sorted(done & (history.remaining or set()))]


def given_up(history: ClaimHistory, _: Limits) -> list[str]:
    """A given-up message whose post was acknowledged is a dead letter, unless it was acknowledged or cancelled."""
    done = {one.position for one in history.acknowledgements if one.outcome in FINAL_OUTCOMES}
    given_up = {one.position for one in history.given_up if one.outcome == "done"} & history.acknowledged
    done |= {one.position for one in history.cancelled}
    return [f"{position} is not a dead letter" for position in sorted(given_up - done - history.letters.keys())]


def g6(history: ClaimHistory, _: Limits) -> list[str]:
    """A posted message is given until a client may have acknowledged it, or it is a dead letter."""
    given = {one.position for one in history.deliveries} | history.letters.keys()
    ended = max((demand.asked for demand in history.releases), default=history.calm)
    late = {one.position for one in history.deliveries if one.answered > (ended if one.kept else history.calm)}
    maybe_done = {one.position for one in history.acknowledgements if one.outcome in {"done", "again", "unknown", ""}}
    maybe_done |= history.letters.keys() | {one.position for one in history.cancelled}
    # A given-up message whose post is unsure may be gone before it is a dead letter; so may its copies.
    maybe_done |= {one.position for one in history.given_up if one.outcome != "none"} - history.acknowledged
    return [
        f"{position} was never given"
        if position not in given
        else f"{position} was not given again, though nobody can have acknowledged it"
        for position in sorted(history.acknowledged)
        if (position not in given or (position not in maybe_done and position not in late))
        and not (
            position in history.bodies
            and position not in given
            and _stands_for_another(history, position, history.acknowledged | maybe_done | late)
        )
    ]


def _iterate_claimed(changes: list[tuple[float, int, Position]]) -> Iterator[list[Position]]:
    """Yields the claimed positions at each change. A change is 1 where a claim begins and -1 where it ends."""
    claims: Counter[Position] = Counter()
    for _, change, position in sorted(changes):
        claims[position] += change
        yield [one for one, count in claims.items() if count > 0]


CLAIMS: Rules = {"G4": (g4, "delivered"), "G5": (g5, "acknowledgements done"), "G6": (g6, "acknowledged")}
"""The rules for runs against a real service, whose stored state is not known."""
SIMULATED: Rules = {
    **CLAIMS,
    "on_ack": (on_ack, "acknowledgements done"),
    "given up": (given_up, "acknowledged"),
    "cancelled": (cancelled, "delivered"),
    "delay": (delay, "delivered"),
    "dedup": (dedup, "delivered"),
    "outbox": (outbox, "acknowledged"),
    "limit": (attempts, "delivered"),
    "order": (order, "delivered"),
    "key": (key_alone, "delivered"),
    "places": (places, "delivered"),
    "empty": (lambda history, _: history.stored.find_false_empties(history.empties), "calls"),
}
"""The rules for simulated histories."""

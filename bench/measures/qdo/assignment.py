"""What it costs to share partitions out anew, and what moves, against dealing them round without a memory."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from bench.harness import Bench, Void, measure
from bench.results import Report, Row, Verdict, paired
from qdo.assignment import assign
from qdo.partitions import Partition, Queue

Members = Mapping[str, Mapping[Queue, int]]
Owners = dict[Partition, str]
NEWCOMER = "worker-0500-and-a-half"
"""Sorts into the middle, as a made-up name does."""


class Change(NamedTuple):
    """A change in a group.

    Attributes:
        name: For people.
        members: Who is there afterwards.
        before: Who owned what.
    """

    name: str
    members: Members
    before: Owners


class Outcome(NamedTuple):
    """What came of a change.

    Attributes:
        spent: Milliseconds of the processor, so that what else runs on the machine has little part in them.
        moves: Partitions that moved although their owner is still there.
    """

    spent: float
    moves: int


@measure("assignment", "Sharing out 10,000 partitions over 1,000 members: a join and a leave")
def assignment(bench: Bench) -> Report:
    """Members that subscribe to the same 100 queues, and members that subscribe to 20 of 1,000 queues each."""
    count = bench.size(1000, 100)
    rng = random.Random(7)
    sides: dict[str, Callable[[], Outcome]] = {}
    for kind, members in (("equal", equal(count)), ("unequal", unequal(count, rng))):
        newcomer = next(iter(members.values())) if kind == "equal" else dict(rng.choice(list(members.values())))
        gone = sorted(members)[count // 2]
        joined = {**members, NEWCOMER: newcomer}
        left = {name: seen for name, seen in members.items() if name != gone}
        for what, after in (("join", joined), ("leave", left)):
            for side, way in (("ours", ours), ("round", dealt_round)):
                change = Change(f"{kind}, {what}", after, way(members, {}))
                sides[f"{change.name}, {side}"] = partial(carry_out, way, change)
    samples = bench.interleave(sides, bench.size(11, 1))
    return Report("assignment", "", rows(samples), verdicts(samples), [f"{count:,} members; moves as details."])


def rows(samples: Mapping[str, list[Outcome]]) -> list[Row]:
    """Returns the times, with the moves beside them."""
    return [
        Row(name, [outcome.spent for outcome in outcomes], "ms", {"moves": outcomes[0].moves})
        for name, outcomes in samples.items()
    ]


def verdicts(samples: Mapping[str, list[Outcome]]) -> list[Verdict]:
    """Returns ours against dealing round, for each change."""
    found = []
    for name in dict.fromkeys(name.rpartition(", ")[0] for name in samples):
        own, other = samples[f"{name}, ours"], samples[f"{name}, round"]
        found += [
            Verdict(f"{name}: time", [outcome.spent for outcome in own], "ms", goal=500, aim=250, better="lower"),
            Verdict(
                f"{name}: time, ours / round",
                paired([outcome.spent for outcome in own], [outcome.spent for outcome in other]),
                better="lower",
            ),
            Verdict(
                f"{name}: moves, round / ours",
                [each.moves / max(1, mine.moves) for mine, each in zip(own, other, strict=True)],
                goal=10,
            ),
        ]
    return found


def equal(count: int) -> Members:
    """Returns members that all see the same hundred queues, ten partitions for each member."""
    seen = {Queue("host:5000", "app", f"queue-{number:03}"): count // 10 for number in range(100)}
    return {f"worker-{number:04}": dict(seen) for number in range(count)}


def unequal(count: int, rng: random.Random) -> Members:
    """Returns members that each see twenty of as many queues as there are members, with ten partitions each."""
    queues = [Queue("host:5000", "app", f"queue-{number:04}") for number in range(count)]
    return {f"worker-{number:04}": dict.fromkeys(rng.sample(queues, 20), 10) for number in range(count)}


def carry_out(way: Callable[[Members, Owners], Owners], change: Change) -> Outcome:
    """Shares out anew.

    Raises:
        Void: A partition was left out, or given to somebody who does not subscribe.
    """
    began = time.thread_time()
    after = way(change.members, change.before)
    spent = (time.thread_time() - began) * 1000
    if after.keys() != partitions(change.members) or not all(
        each.queue in change.members[owner] for each, owner in after.items()
    ):
        raise Void(f"{change.name}: not all partitions were shared out, or not to subscribers")
    stayed = [partition for partition, owner in change.before.items() if owner in change.members]
    return Outcome(spent, sum(after[partition] != change.before[partition] for partition in stayed))


def partitions(members: Members) -> set[Partition]:
    """Returns all partitions that somebody sees."""
    queues = {queue: count for seen in members.values() for queue, count in seen.items()}
    return {Partition(queue, number) for queue, count in queues.items() for number in range(1, count + 1)}


def ours(members: Members, before: Owners) -> Owners:
    """As Qdo does it."""
    return assign(members, before)


def dealt_round(members: Members, _: Owners) -> Owners:
    """Deals partitions round, to the next member that subscribes; who had what is forgotten."""
    line = itertools.cycle(sorted(members))
    queues = {queue: count for seen in members.values() for queue, count in seen.items()}
    owners = {}
    for queue, count in sorted(queues.items()):
        for number in range(1, count + 1):
            owners[Partition(queue, number)] = next(name for name in line if queue in members[name])
    return owners

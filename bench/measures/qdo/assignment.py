"""Measures reassigning partitions (time and moved partitions) against a stateless round-robin assignment."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from bench.harness import Bench, Void, measure
from bench.results import Report, Row, Verdict, pairwise_ratios
from qdo.assignment import assign
from qdo.partitions import Partition, Queue

Members = Mapping[str, Mapping[Queue, int]]
Owners = dict[Partition, str]
NEWCOMER = "worker-0500-and-a-half"
"""A name that sorts into the middle, as generated names do."""


class Change(NamedTuple):
    """A change in a group.

    Attributes:
        name: Name for the tables.
        members: The members after the change, with their subscriptions.
        before: The owners before the change.
    """

    name: str
    members: Members
    before: Owners


class Outcome(NamedTuple):
    """The cost of a change.

    Attributes:
        spent: CPU milliseconds of this thread, so that other processes hardly affect them.
        moves: Partitions that moved although their owner is still in the group.
    """

    spent: float
    moves: int


@measure("assignment", "Sharing out 10,000 partitions over 1,000 members: a join and a leave")
def measure_assignment(bench: Bench) -> Report:
    """Measures members that subscribe to the same 100 queues, and members that subscribe to 20 of 1,000 queues each."""
    count = bench.count(1000, 100)
    rng = random.Random(7)
    sides: dict[str, Callable[[], Outcome]] = {}
    for kind, members in (("equal", make_equal_members(count)), ("unequal", make_unequal_members(count, rng))):
        newcomer = next(iter(members.values())) if kind == "equal" else dict(rng.choice(list(members.values())))
        leaver = sorted(members)[count // 2]
        joined = {**members, NEWCOMER: newcomer}
        remaining = {name: subscription for name, subscription in members.items() if name != leaver}
        for action, after in (("join", joined), ("leave", remaining)):
            for side, assign_by in (("ours", assign_as_qdo), ("round", assign_in_rounds)):
                change = Change(f"{kind}, {action}", after, assign_by(members, {}))
                sides[f"{change.name}, {side}"] = partial(carry_out, assign_by, change)
    samples = bench.interleave(sides, bench.count(11, 1))
    return Report("assignment", "", rows(samples), verdicts(samples), [f"{count:,} members; moves as details."])


def rows(samples: Mapping[str, list[Outcome]]) -> list[Row]:
    return [
        Row(name, [outcome.spent for outcome in outcomes], "ms", {"moves": outcomes[0].moves})
        for name, outcomes in samples.items()
    ]


def verdicts(samples: Mapping[str, list[Outcome]]) -> list[Verdict]:
    all_verdicts = []
    for name in dict.fromkeys(name.rpartition(", ")[0] for name in samples):
        own, other = samples[f"{name}, ours"], samples[f"{name}, round"]
        all_verdicts += [
            Verdict(f"{name}: time", [outcome.spent for outcome in own], "ms", goal=500, aim=250, better="lower"),
            Verdict(
                f"{name}: time, ours / round",
                pairwise_ratios([outcome.spent for outcome in own], [outcome.spent for outcome in other]),
                better="lower",
            ),
            Verdict(
                f"{name}: moves, round / ours",
                [theirs.moves / max(1, mine.moves) for mine, theirs in zip(own, other, strict=True)],
                goal=10,
            ),
        ]
    return all_verdicts


def make_equal_members(count: int) -> Members:
    """Returns members that all subscribe to the same hundred queues, with ten partitions per member in total."""
    subscription = {Queue("host:5000", "app", f"queue-{number:03}"): count // 10 for number in range(100)}
    return {f"worker-{number:04}": dict(subscription) for number in range(count)}


def make_unequal_members(count: int, rng: random.Random) -> Members:
    """Returns members that each subscribe to twenty queues of ten partitions, out of as many queues as members."""
    queues = [Queue("host:5000", "app", f"queue-{number:04}") for number in range(count)]
    return {f"worker-{number:04}": dict.fromkeys(rng.sample(queues, 20), 10) for number in range(count)}


def carry_out(assign_by: Callable[[Members, Owners], Owners], change: Change) -> Outcome:
    """Reassigns the partitions after a change.

    Raises:
        Void: A partition was not assigned, or was assigned to a member that does not subscribe to it.
    """
    began = time.thread_time()
    owners = assign_by(change.members, change.before)
    spent = (time.thread_time() - began) * 1000
    if owners.keys() != partitions(change.members) or not all(
        partition.queue in change.members[owner] for partition, owner in owners.items()
    ):
        raise Void(f"{change.name}: not all partitions were shared out, or not to subscribers")
    stayed = [partition for partition, owner in change.before.items() if owner in change.members]
    return Outcome(spent, sum(owners[partition] != change.before[partition] for partition in stayed))


def partitions(members: Members) -> set[Partition]:
    queues = {queue: count for seen in members.values() for queue, count in seen.items()}
    return {Partition(queue, number) for queue, count in queues.items() for number in range(1, count + 1)}


def assign_as_qdo(members: Members, before: Owners) -> Owners:
    return assign(members, before)


def assign_in_rounds(members: Members, _: Owners) -> Owners:
    names = itertools.cycle(sorted(members))
    queues = {queue: count for seen in members.values() for queue, count in seen.items()}
    owners = {}
    for queue, count in sorted(queues.items()):
        for number in range(1, count + 1):
            owners[Partition(queue, number)] = next(name for name in names if queue in members[name])
    return owners

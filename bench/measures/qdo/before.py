"""Qdo of this tree beside that of another one, an earlier commit above all; see :mod:`.before`."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.harness import Bench, measure
from bench.measures.before import NAMES, trees
from bench.measures.qdo.rebalance import PARTITIONS, Member, changed, process, served, settle, undisturbed
from bench.measures.qdo.throughput import PARTITIONS as NUMBERS
from bench.measures.qdo.throughput import filled, name, rates, row
from bench.results import Report, Row, Verdict, paired
from bench.started import keepers, workers
from bench.started.processes import ROOT, Process
from bench.started.workers import Pace

MEMBERS = 4


@measure("qdo-before", "A worker of this tree over one of another tree, whose path is in BENCH_BEFORE")
def before(bench: Bench) -> Report:
    """Both handle the same messages of one service, which is of this tree, in turns."""
    both = trees()
    count = bench.size(300_000, 40_000)
    verdicts = []
    with contextlib.ExitStack() as stack:
        calls: dict[str, Callable[[], Pace]] = {}
        for partitions in NUMBERS:
            server = stack.enter_context(filled(bench, partitions, count))
            for handler in workers.HANDLERS:
                for which, tree in both.items():
                    side = f"{name(handler, partitions)}, {which}"
                    calls[side] = partial(_handled, bench, server, count, handler, tree)
        samples = bench.interleave(calls, bench.size(7, 1))
    for partitions in NUMBERS:
        for handler in workers.HANDLERS:
            side = name(handler, partitions)
            now, old = (rates(samples[f"{side}, {which}"]) for which in NAMES)
            verdicts.append(Verdict(f"{side}: rate now / before", paired(now, old), goal=0.9))
    return Report("", "", [row(side, runs) for side, runs in samples.items()], verdicts)


def _handled(bench: Bench, server: Process, count: int, handler: str, tree: Path) -> Pace:
    directory = bench.fresh("group")
    # Version 0.1 has no groups in the service; later ones take the file for their service's group.
    place = "" if tree == ROOT else f"local://{directory / 'group.sqlite3'}"
    return workers.handle(server, directory, count, handler=handler, place=place, tree=tree)


class Turn(NamedTuple):
    """One life of a group, seconds.

    Attributes:
        joined: From the call to join until all was owned, when one more came.
        left: The same when it went.
        longest: Between two messages of a partition that stayed, at most.
    """

    joined: float
    left: float
    longest: float


@measure("qdo-rebalance-before", f"{PARTITIONS:,} partitions over {MEMBERS} members, one joins and leaves")
def rebalance(bench: Bench) -> Report:
    """A group of each tree, one after the other, on one ZooKeeper server and one service."""
    both = trees()
    with keepers.zookeeper(bench, 1) as server:
        return _rebalanced(bench, dict.fromkeys(both, f"zookeeper://{server.connect_string}/bench"))


def _rebalanced(bench: Bench, places: Mapping[str, str]) -> Report:
    """Compares groups of each tree, which have their places."""
    rounds = bench.size(4, 1)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(served(bench, 4 * rounds))
        calls: Mapping[str, Callable[[], Turn]] = {
            which: partial(_turn, [stack.enter_context(process(url, places[which], tree)) for _ in range(MEMBERS + 1)])
            for which, tree in trees().items()
        }
        samples = bench.interleave(calls, rounds)
    rows, verdicts = [], []
    for number, what in enumerate(
        ("one joins: until all is owned", "one leaves: until all is owned", "longest wait of a partition that stays")
    ):
        found = {which: [turn[number] for turn in samples[which]] for which in NAMES}
        rows += [Row(f"{what}, {which}", [1000 * each for each in found[which]], "ms") for which in NAMES]
        verdicts.append(Verdict(f"{what}: now / before", paired(*(found[which] for which in NAMES)), better="lower"))
    return Report("", "", rows, verdicts)


def _turn(members: Sequence[Member]) -> Turn:
    """Has a group come together, one more come and go, and all leave."""
    *others, last = members
    for one in others:
        one.do("join")
    settle(others)
    undisturbed(others)  # Only a partition that has messages by now shows how long it waits.
    joins = changed("join", last, others, members)
    leaves = changed("leave", last, others, others)
    for one in others:
        one.do("leave")
    return Turn(joins.seconds, leaves.seconds, statistics.mean((joins.longest, leaves.longest)))

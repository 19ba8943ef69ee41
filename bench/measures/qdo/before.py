"""Compares Qdo of this checkout with that of another, usually earlier one; see :mod:`bench.measures.before`."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.harness import Bench, measure
from bench.measures.before import NAMES, find_both_checkouts
from bench.measures.qdo.rebalance import (
    PARTITIONS,
    Member,
    measure_change,
    measure_undisturbed,
    run_member,
    serve_queues,
    settle,
)
from bench.measures.qdo.throughput import PARTITIONS as NUMBERS
from bench.measures.qdo.throughput import rates, row, serve_filled, side_name
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import keepers, workers
from bench.started.processes import ROOT, Process
from bench.started.workers import Pace

MEMBERS = 4


@measure("qdo-before", "A worker of this tree over one of another tree, whose path is in BENCH_BEFORE")
def compare_workers_of_checkouts(bench: Bench) -> Report:
    """Both handle the same messages, in turn, from one service of this checkout."""
    checkouts = find_both_checkouts()
    count = bench.count(300_000, 40_000)
    verdicts = []
    with contextlib.ExitStack() as stack:
        calls: dict[str, Callable[[], Pace]] = {}
        for partitions in NUMBERS:
            server = stack.enter_context(serve_filled(bench, partitions, count))
            for handler in workers.HANDLERS:
                for which, tree in checkouts.items():
                    side = f"{side_name(handler, partitions)}, {which}"
                    calls[side] = partial(_time_worker, bench, server, count, handler, tree)
        samples = bench.interleave(calls, bench.count(7, 1))
    for partitions in NUMBERS:
        for handler in workers.HANDLERS:
            side = side_name(handler, partitions)
            now, earlier = (rates(samples[f"{side}, {which}"]) for which in NAMES)
            verdicts.append(Verdict(f"{side}: rate now / before", pairwise_ratios(now, earlier), goal=0.9))
    return Report("", "", [row(side, runs) for side, runs in samples.items()], verdicts)


def _time_worker(bench: Bench, server: Process, count: int, handler: str, tree: Path) -> Pace:
    """Lets a worker of ``tree`` handle all messages. Another checkout coordinates its group through a local file."""
    directory = bench.new_directory("group")
    # Version 0.1 has no groups in the service, so the other checkout coordinates its group through a file.
    place = "" if tree == ROOT else f"local://{directory / 'group.sqlite3'}"
    return workers.handle_all(server, directory, count, handler=handler, place=place, tree=tree)


class Turn(NamedTuple):
    """Times of one group, in seconds.

    Attributes:
        joined: From the call to join until all partitions were owned, when one more member came.
        left: From the call to leave until all partitions were owned, when that member left.
        longest: Longest time between two messages of a partition that stayed with its member; mean of both changes.
    """

    joined: float
    left: float
    longest: float


@measure("qdo-rebalance-before", f"{PARTITIONS:,} partitions over {MEMBERS} members, one joins and leaves")
def compare_rebalances_of_checkouts(bench: Bench) -> Report:
    """Runs a group of each checkout, one after the other, on one ZooKeeper server and one service."""
    checkouts = find_both_checkouts()
    with keepers.zookeeper(bench, 1) as server:
        return _compare_rebalances(bench, dict.fromkeys(checkouts, f"zookeeper://{server.connect_string}/bench"))


def _compare_rebalances(bench: Bench, places: Mapping[str, str]) -> Report:
    rounds = bench.count(4, 1)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serve_queues(bench, 4 * rounds))
        calls: Mapping[str, Callable[[], Turn]] = {
            which: partial(
                _run_turn, [stack.enter_context(run_member(url, places[which], tree)) for _ in range(MEMBERS + 1)]
            )
            for which, tree in find_both_checkouts().items()
        }
        samples = bench.interleave(calls, rounds)
    rows, verdicts = [], []
    for number, what in enumerate(
        ("one joins: until all is owned", "one leaves: until all is owned", "longest wait of a partition that stays")
    ):
        seconds = {which: [turn[number] for turn in samples[which]] for which in NAMES}
        rows += [Row(f"{what}, {which}", [1000 * s for s in seconds[which]], "ms") for which in NAMES]
        verdicts.append(
            Verdict(f"{what}: now / before", pairwise_ratios(*(seconds[which] for which in NAMES)), better="lower")
        )
    return Report("", "", rows, verdicts)


def _run_turn(members: Sequence[Member]) -> Turn:
    """Lets all members but the last join, then the last join and leave; in the end all have left."""
    *others, last = members
    for member in others:
        member.do("join")
    settle(others)
    measure_undisturbed(others)  # Waits are only recorded for partitions that have received messages.
    joins = measure_change("join", last, others, members)
    leaves = measure_change("leave", last, others, others)
    for member in others:
        member.do("leave")
    return Turn(joins.seconds, leaves.seconds, statistics.mean((joins.longest, leaves.longest)))

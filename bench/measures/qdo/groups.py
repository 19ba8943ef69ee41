"""Compares the service's groups with ZooKeeper's: the rate of a worker, and the duration of a rebalance."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from bench.harness import Bench, Void, measure
from bench.measures.qdo.rebalance import (
    CHANGE_TIMEOUT,
    PARTITIONS,
    QUERY_INTERVAL,
    ROUND_SECONDS,
    Member,
    query_states,
    run_member,
    serve_queues,
    settle,
)
from bench.measures.qdo.throughput import PARTITIONS as NUMBERS
from bench.measures.qdo.throughput import rates, row, serve_filled, side_name
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import keepers, workers
from bench.started.processes import Process
from bench.started.workers import Pace

MEMBERS = 4
REST_SECONDS = 10.5
"""Seconds without a change, after which the service rebalances a new change without delay."""
MAX_ROUND_SECONDS = 18
"""Max duration of a round, in seconds."""
SIDES = ("service", "ZooKeeper")


@measure("qdo-groups", "One worker with an empty handler, in a group of the service and in one of ZooKeeper")
def compare_worker_rates(bench: Bench) -> Report:
    count = bench.count(1_000_000, 40_000)
    verdicts = []
    with contextlib.ExitStack() as stack:
        places = dict(zip(SIDES, ("", _start_zookeeper(bench, stack)), strict=True))
        calls: dict[str, Callable[[], Pace]] = {}
        for partitions in NUMBERS:
            server = stack.enter_context(serve_filled(bench, partitions, count))
            for side, place in places.items():
                calls[side_name(side, partitions)] = partial(_time_worker, bench, server, count, place)
        samples = bench.interleave(calls, bench.count(7, 1))
    for partitions in NUMBERS:
        pair = pairwise_ratios(*(rates(samples[side_name(side, partitions)]) for side in SIDES))
        verdicts.append(Verdict(side_name("rate: service / ZooKeeper", partitions), pair, goal=1.0))
    return Report("", "", [row(side, runs) for side, runs in samples.items()], verdicts)


def _start_zookeeper(bench: Bench, stack: contextlib.ExitStack) -> str:
    return f"zookeeper://{stack.enter_context(keepers.zookeeper(bench, 1)).connect_string}/bench"


def _time_worker(bench: Bench, server: Process, count: int, place: str) -> Pace:
    return workers.handle_all(server, bench.new_directory("group"), count, place=place)


class Joins(NamedTuple):
    """Seconds from the call to join until the new member received its first message.

    Attributes:
        rested: After a while without changes.
        soon: Shortly after another member had joined and left.
    """

    rested: float
    soon: float


@measure("qdo-groups-rebalance", f"{PARTITIONS:,} partitions over {MEMBERS} members when one joins")
def compare_rebalances(bench: Bench) -> Report:
    """Runs a group of the service and one of ZooKeeper in turn. Only joins after a rest have a goal."""
    rounds, joins = bench.count(2, 1), bench.count(5, 1)
    with contextlib.ExitStack() as stack:
        places = dict(zip(SIDES, ("", _start_zookeeper(bench, stack)), strict=True))
        url = stack.enter_context(serve_queues(bench, rounds * joins * MAX_ROUND_SECONDS // ROUND_SECONDS))
        calls: dict[str, Callable[[], list[Joins]]] = {
            side: partial(
                _measure_joins, [stack.enter_context(run_member(url, place)) for _ in range(MEMBERS + 1)], joins
            )
            for side, place in places.items()
        }
        samples = {
            side: [join for turn in turns for join in turn] for side, turns in bench.interleave(calls, rounds).items()
        }
    rows, verdicts = [], []
    for number, when in enumerate(("after a rest", "soon after another change")):
        times = {side: [1000 * sample[number] for sample in samples[side]] for side in SIDES}
        rows += [Row(f"{side}: first message, {when}", times[side], "ms") for side in SIDES]
        if number == 0:
            for figure, aggregate in (("median", statistics.median), ("worst", max)):
                ratio = [aggregate(times["service"]) / aggregate(times["ZooKeeper"])]
                verdicts.append(
                    Verdict(f"{figure} of {rounds * joins} joins: service / ZooKeeper", ratio, goal=1, better="lower")
                )
    return Report("", "", rows, verdicts)


def _measure_joins(members: Sequence[Member], joins: int) -> list[Joins]:
    """Lets the last member join twice per turn, after a rest and soon after, and leave in between.

    All other members join first, and leave in the end.
    """
    *others, last = members
    for member in others:
        member.do("join")
    settle(others)
    samples = []
    for _ in range(joins):
        time.sleep(REST_SECONDS)
        rested = _time_first_message(last, members)
        _leave_and_settle(last, others)
        samples.append(Joins(rested, _time_first_message(last, members)))
        _leave_and_settle(last, others)
    for member in others:
        member.do("leave")
    return samples


def _leave_and_settle(last: Member, others: Sequence[Member]) -> None:
    last.do("leave")
    settle(others)


def _time_first_message(last: Member, members: Sequence[Member]) -> float:
    """Lets a member join; returns the seconds until its first message, once all members have equal shares.

    Raises:
        Void: The member received no message in time.
    """
    begun = last.do("join")
    deadline = time.monotonic() + CHANGE_TIMEOUT
    while not (first := query_states([last])[0].first):
        if time.monotonic() > deadline:
            raise Void("a member that joined received no message in time")
        time.sleep(QUERY_INTERVAL)
    settle(members)
    return first - begun

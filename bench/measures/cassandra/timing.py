"""Compares two timings on the same three nodes: what a short write deadline costs, with and without failing nodes."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

from bench.harness import Bench, Void, measure
from bench.load import traffic
from bench.load.fixed_rate import FixedRatePlan, FixedRateResult
from bench.load.waiting import get
from bench.measures.cassandra.over_http import warm_up
from bench.measures.over_http import CONNECTIONS, QUEUE
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import nodes, on_cassandra, service
from bench.started.nodes import Nodes
from bench.started.processes import Process
from deploy.local import CassandraNode
from queuey.messages import QueueSpec
from queuey.storage import bridge
from queuey.storage.cassandra import timing
from queuey.storage.cassandra.admin import stored_timing
from queuey.storage.cassandra.driver import open_driver
from queuey.storage.cassandra.options import CassandraOptions, parse_url
from queuey.storage.cassandra.timing import LevelTiming, Timing

STORED_STATUS = "201"
COUNTERS = {
    "repeated": "queuey_posts_repeated_total",
    "late": "queuey_store_late_writes_total",
    "undone": "queuey_store_undo_writes_total",
    "unknown": "queuey_store_undo_writes_unknown_total",
}
"""Metrics of the service; a missing one counts as 0."""
PARTITIONS = 4
SETTLE_TIMEOUT = 300.0
"""Timeout for all nodes to see each other again, in seconds."""


class NamedTiming(NamedTuple):
    """A timing, its name in the tables, and the seconds after which a request also goes to a second node."""

    name: str
    timing: Timing
    speculative: float

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def strong(self) -> LevelTiming:
        return self.timing.levels["strong"]


PATIENT = NamedTiming("W 3 s", timing.MANY_CENTRES_TIMING, 0.5)
SHORT = NamedTiming("W 0.4 s", timing.ONE_CENTRE_TIMING, 0.1)


def store_timing(url: str, times: NamedTiming) -> None:
    """Stores the timing in the keyspace, without the waits that a change in use needs."""
    options = CassandraOptions()
    with open_driver(parse_url(url), options, 60) as driver:
        stored_timing.change_timing(driver, options, times.timing, lambda _: None, wait=lambda _: None)


class Scenario(NamedTuple):
    """The load, its duration in seconds, and the fault of one of the nodes.

    ``rate`` is posts per second; 0 means as many as 64 connections can send. ``fault`` gets the node and the seconds.
    Afterwards the driver has ``after`` seconds to reconnect to the node.
    """

    name: str
    rate: int
    seconds: float
    fault: Callable[[CassandraNode, float], None] | None = None
    after: float = 0.0


def kill_for_a_while(node: CassandraNode, seconds: float) -> None:
    """Kills the node after an eighth of the time and launches it a quarter later, without waiting until it serves."""
    time.sleep(seconds / 8)
    node.kill()
    time.sleep(seconds / 4)
    node.launch()


def pause_for_a_while(pause: float, node: CassandraNode, seconds: float) -> None:
    """Pauses the node for ``pause`` seconds, after a third of the remaining time."""
    time.sleep((seconds - pause) / 3)
    node.pause()
    time.sleep(pause)
    node.resume()


def compact_until_end(node: CassandraNode, seconds: float) -> None:
    """Runs major compactions one after another; the last one may end later."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        node.nodetool("compact")


def scenarios(bench: Bench) -> list[Scenario]:
    calm = bench.duration(12, 1)
    short, long = bench.duration(2, 0.5), bench.duration(10, 1)
    after = bench.duration(3, 0)
    return [
        Scenario("500 posts/s", 500, calm),
        Scenario("2,000 posts/s", 2000, calm),
        Scenario(f"{CONNECTIONS} connections", 0, calm),
        Scenario("compaction", 1000, calm, compact_until_end, after),
        Scenario(f"a node paused for {short:g} s", 500, short * 4, partial(pause_for_a_while, short), after),
        Scenario(f"a node paused for {long:g} s", 500, long * 2, partial(pause_for_a_while, long), after),
        Scenario("a node killed", 500, bench.duration(24, 2), kill_for_a_while, after),
    ]


@dataclass(frozen=True)
class Turn:
    """One run of a scenario: seconds, milliseconds of each request by outcome, and the service's counters."""

    seconds: float
    times: Mapping[str, list[float]]
    counts: Mapping[str, float]

    @property
    def rate(self) -> float:
        return len(self.times.get(STORED_STATUS, ())) / self.seconds


@measure("cassandra-timing", "A write deadline of 0.4 s on three nodes, three copies, beside one of 3 s")
def compare_timings(bench: Bench) -> Report:
    """Each timing has its own service and keyspace on the same nodes; they alternate in each scenario."""
    turns: dict[tuple[str, NamedTiming], list[Turn]] = {}
    compared = scenarios(bench)
    with nodes.cassandra(bench, 3) as cassandra, contextlib.ExitStack() as stack:
        servers = {times: stack.enter_context(serve_with_timing(bench, cassandra, times)) for times in (PATIENT, SHORT)}
        for scenario in compared:
            calls = {
                times.name: partial(run_scenario, cassandra, server, scenario, itertools.cycle(cassandra.servers))
                for times, server in servers.items()
            }
            bench.print_progress(scenario.name)
            samples = bench.interleave(calls, bench.count(3, 1))
            turns |= {(scenario.name, times): samples[times.name] for times in servers}
    rows = [row(f"{name}, {times.name}", runs) for (name, times), runs in turns.items()]
    return Report("", "", rows, verdicts(compared, turns), notes(turns))


@contextlib.contextmanager
def serve_with_timing(bench: Bench, cassandra: Nodes, times: NamedTiming) -> Iterator[Process]:
    keyspace = f"timing_{times.strong.deadline * 1000:.0f}"
    store = on_cassandra.prepare(cassandra, keyspace, [])
    bridge.run(store.catalogue.create_queue(service.APPLICATION, "bench", QueueSpec(partitions=PARTITIONS)))
    store.close()
    store_timing(cassandra.store_url(keyspace), times)
    environment = {"QUEUEY_CASSANDRA_SPECULATIVE": str(times.speculative)}
    with on_cassandra.serve(
        cassandra, bench.new_directory("queuey"), keyspace=keyspace, environment=environment
    ) as server:
        warm_up(bench, server, traffic.posts_of_one(QUEUE, traffic.bodies(64)))
        yield server


def run_scenario(cassandra: Nodes, server: Process, scenario: Scenario, victims: Iterator[CassandraNode]) -> Turn:
    """Runs a scenario once. Its fault, if any, hits the next node; then it waits until all nodes see each other."""
    plan: FixedRatePlan = {
        "port": server.port,
        "connections": CONNECTIONS,
        "requests": list(traffic.posts_of_one(QUEUE, traffic.bodies(64)).requests),
        "status": 201,
        "warm": 0,
        "seconds": scenario.seconds,
        "count": 0,
        "numbered": 0,
        "rate": scenario.rate,
    }
    before = read_counts(server)
    with ThreadPoolExecutor(1) as pool:
        faults = [] if scenario.fault is None else [pool.submit(scenario.fault, next(victims), scenario.seconds)]
        generated, _ = traffic.run_generator(server, "bench.load.fixed_rate", plan, scenario.seconds + 60, None)
        for fault in faults:
            fault.result()
    if faults:
        settle(cassandra)
        time.sleep(scenario.after)
    result = cast("FixedRateResult", generated)
    counted = {name: count - before[name] for name, count in read_counts(server).items()}
    return Turn(result["seconds"], result["times"], counted)


def settle(cassandra: Nodes) -> None:
    """Waits until all nodes see each other again.

    Raises:
        Void: The nodes did not within the timeout.
    """
    end = time.monotonic() + SETTLE_TIMEOUT
    while not all(node.sees_all() for node in cassandra.servers):
        if time.monotonic() > end:
            raise Void("the nodes did not see each other again in time")
        time.sleep(0.2)


def read_counts(server: Process) -> dict[str, float]:
    metrics = dict(line.rsplit(" ", 1) for line in get(server, "/metrics").splitlines() if not line.startswith("#"))
    return {name: float(metrics.get(metric, 0)) for name, metric in COUNTERS.items()}


def quantile(times: Iterable[float], part: float) -> float:
    """Returns a quantile of the times; 0 without times."""
    ordered = sorted(times) or [0.0]
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def pool_times(turns: Iterable[Turn], *kinds: str) -> list[float]:
    """Returns the times of several runs, of these outcomes or of all."""
    return [ms for run in turns for kind, times in run.times.items() if not kinds or kind in kinds for ms in times]


def row(name: str, turns: Sequence[Turn]) -> Row:
    times = pool_times(turns)
    quantiles = {"p50 ms": 0.5, "p99 ms": 0.99, "p99.9 ms": 0.999, "p99.99 ms": 0.9999, "longest ms": 1}
    details = {what: quantile(times, share) for what, share in quantiles.items()}
    for limit in (400, 750):
        details[f"% over {limit} ms"] = 100 * sum(ms > limit for ms in times) / len(times)
    kinds = {kind for run in turns for kind in run.times} - {STORED_STATUS}
    details |= {f"% {kind}": 100 * len(pool_times(turns, kind)) / len(times) for kind in sorted(kinds)}
    counted = {what: sum(run.counts[what] for run in turns) for what in COUNTERS}
    details["% repeated"] = 100 * counted.pop("repeated") / len(times)
    return Row(name, [run.rate for run in turns], "messages/s", details | {k: v for k, v in counted.items() if v})


def verdicts(compared: Sequence[Scenario], turns: Mapping[tuple[str, NamedTiming], Sequence[Turn]]) -> list[Verdict]:
    all_verdicts = []
    for name, rate, *_ in compared:
        soon, patient = turns[name, SHORT], turns[name, PATIENT]
        rates = pairwise_ratios([run.rate for run in soon], [run.rate for run in patient])
        all_verdicts += [Verdict(f"rate, {name}: {SHORT.name} / {PATIENT.name}", rates, goal=None if rate else 0.98)]
        increase = refused_percentage(soon) - refused_percentage(patient)
        all_verdicts += [Verdict(f"refused more, {name}", [increase], "% of requests", goal=0.1, better="lower")]
    return all_verdicts


def refused_percentage(turns: Sequence[Turn]) -> float:
    """Returns the percentage of requests that were not stored, mostly answered with 503."""
    return 100 - 100 * len(pool_times(turns, STORED_STATUS)) / len(pool_times(turns))


def notes(turns: Mapping[tuple[str, NamedTiming], Sequence[Turn]]) -> list[str]:
    """Returns notes with the smallest read delay that the measured times would allow."""
    patient, soon = (
        [run for (_, used), runs in turns.items() if used == times for run in runs] for times in (PATIENT, SHORT)
    )
    write_times = {share: quantile(pool_times(patient), share) / 1000 for share in (0.99, 0.999, 0.9999)}
    tails = ", ".join(f"{100 * share:g} % in {seconds:.2g} s" for share, seconds in write_times.items())
    undo, difference = SHORT.strong.undo, SHORT.timing.clock_difference
    delays = ", ".join(f"{seconds + undo + difference:.2g} s" for seconds in write_times.values())
    undone, unknown = (sum(run.counts[what] for run in soon) for what in ("undone", "unknown"))
    return [
        f"Times are the client's, from the moment at which a request was due. {PARTITIONS} partitions.",
        f"Of all posts with {PATIENT.name}, {tails}: with U {undo} s and S {difference} s, D at least " + delays,
        f"With {SHORT.name}, {unknown:,.0f} of {undone:,.0f} undo writes were confirmed later than U after W.",
    ]

"""Measures bulk reads and loads on Cassandra, the work of Spark's tasks, against the driver alone."""

from __future__ import annotations

import json
from functools import partial

from bench import bulk_side
from bench.baselines import arrow_rows, cassandra_table, slices
from bench.harness import Bench, measure
from bench.load import traffic
from bench.load.traffic import Sample
from bench.measures.over_http import find_fastest
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.started import nodes, on_cassandra, service
from bench.started.nodes import Nodes
from bench.started.processes import run_module
from queuey.storage import bridge

FETCH_SIZES = (5_000, 10_000, 20_000)
BATCH_SIZES = (50, 100)


@measure("spark-raw", "A partition of Cassandra into Arrow: scan_arrow, scan, and the driver with its NumPy decoder")
def compare_partition_reads(bench: Bench) -> Report:
    """Each side is a child process that is measured on its second pass."""
    count = bench.count(300_000, 5_000)
    with nodes.cassandra(bench) as cassandra:
        cassandra_table.prepare(cassandra.address)
        slices.fill(cassandra.address, count)
        store = on_cassandra.prepare(cassandra)
        bridge.run(
            store.bulk.load(
                bridge.run(store.catalogue.queue(service.APPLICATION, "bench")), bulk_side.make_messages(count)
            )
        )
        store.close()
        url = cassandra.store_url(on_cassandra.KEYSPACE)
        sides = {
            f"driver, pages of {rows:,}": partial(run_side, cassandra, arrow_rows, "read", rows) for rows in FETCH_SIZES
        }
        sides |= {
            "queuey, scan_arrow": partial(run_side, cassandra, bulk_side, "arrow", url),
            "queuey, scan": partial(run_side, cassandra, bulk_side, "messages", url),
        }
        samples = bench.interleave(sides, bench.count(7, 1))
    return make_report(samples, {"queuey, scan_arrow": (0.6, 1.0), "queuey, scan": (None, None)}, count)


@measure("spark-raw-write", "Messages with given ids into Cassandra: load, and the driver's batches of one partition")
def compare_bulk_writes(bench: Bench) -> Report:
    """The driver's rows have no expiry and no metadata, and need no lookups."""
    count = bench.count(300_000, 5_000)
    with nodes.cassandra(bench) as cassandra:
        cassandra_table.prepare(cassandra.address)
        on_cassandra.prepare(cassandra).close()
        url = cassandra.store_url(on_cassandra.KEYSPACE)
        sides = {
            f"driver, batches of {rows}": partial(run_side, cassandra, arrow_rows, "write", count, rows)
            for rows in BATCH_SIZES
        }
        sides["queuey, load"] = partial(run_side, cassandra, bulk_side, "load", url, count)
        samples = bench.interleave(sides, bench.count(5, 1))
    return make_report(samples, {"queuey, load": (0.85, None)}, count)


def run_side(cassandra: Nodes, module: object, *arguments: object) -> Sample:
    """Runs one side in a child process.

    Raises:
        Void: The process failed.
    """
    name: str = module.__name__  # type: ignore[attr-defined]
    rate, cpu = json.loads(run_module(name, *arguments, seconds=300, environment=cassandra.environment()))
    return Sample(rate=rate, cpu=cpu)


def make_report(
    samples: dict[str, list[Sample]], goals: dict[str, tuple[float | None, float | None]], count: int
) -> Report:
    """Reports all sides. Those with a goal and an aim are compared with the fastest side of the driver."""
    best = find_fastest({name: runs for name, runs in samples.items() if name.startswith("driver")})
    under = traffic.rates(samples[best])
    rows = [
        Row(name, traffic.rates(runs), "rows/s", {"its CPU us/row": sorted(run.cpu for run in runs)[len(runs) // 2]})
        for name, runs in samples.items()
    ]
    verdicts = [
        Verdict(f"{name} / {best}", pairwise_ratios(traffic.rates(samples[name]), under), goal=goal, aim=aim)
        for name, (goal, aim) in goals.items()
    ]
    return Report("", "", rows, verdicts, [f"{count:,} rows of {traffic.BODY_BYTES} B, one node."])

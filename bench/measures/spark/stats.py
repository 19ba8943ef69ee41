"""Measures the statistics job on Spark: cost per queue with few and many queues, and against reading the bodies."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import apsw

from bench.harness import Bench, Void, measure
from bench.measures.scale import MAX_FLAT_RATIO
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.spark_side import Run, Side
from bench.started import nodes, on_cassandra, service
from queuey import ids
from queuey.messages import Message, QueueSpec
from queuey.storage import Store, bridge
from queuey.storage.sqlite.connection import FILE
from queuey.storage.sqlite.write.transaction import window_end

BODY = "x" * 200
LIFE_TICKS = 3 * 86_400 * ids.TICKS_PER_SECOND
LOW = ids.random_low()
LOADERS = 32


@measure("spark-stats", "Measuring queues on SQLite with Spark: few, very many, and beside reading bodies")
def measure_stats_on_sqlite(bench: Bench) -> Report:
    """Every queue has one message. The naive side groups the rows of the format ``queuey``."""
    options: dict[int, Mapping[str, str]] = {}
    for size in (100, 1000) if bench.quick else (1000, 10_000, 100_000, 1_000_000):
        directory = bench.new_directory(f"stats-{size}")
        service.prepare(directory, ()).close()
        service.fill_queues(directory, size)
        _fill(directory, size)
        options[size] = {"data": str(directory)}
        bench.print_progress(f"{size:,} queues are there")
    with contextlib.ExitStack() as stack:
        return _compare(bench, stack, options, bench.count(3, 1))


@measure("spark-stats-cassandra", "Measuring queues on Cassandra with Spark: few, many, and beside reading bodies")
def measure_stats_on_cluster(bench: Bench) -> Report:
    with nodes.cassandra(bench) as cassandra, contextlib.ExitStack() as stack:
        options: dict[int, Mapping[str, str]] = {}
        for size in (30, 100) if bench.quick else (1000, 10_000, 100_000):
            keyspace = f"stats_{size}"
            store = on_cassandra.prepare(cassandra, keyspace, ())
            stack.callback(store.close)
            _create_queues(store, size)
            options[size] = {"store": cassandra.store_url(keyspace)}
            bench.print_progress(f"{size:,} queues are there")
        on_cassandra.let_appear(store, bridge.run(store.catalogue.queue(service.APPLICATION, "q0000000")))
        return _compare(bench, stack, options, bench.count(3, 1))


def _compare(
    bench: Bench, stack: contextlib.ExitStack, options: Mapping[int, Mapping[str, str]], rounds: int
) -> Report:
    fewest = min(options)
    sides = {f"{size:,} queues": (_start_side(stack, bench, "stats-queuey", options[size]), size) for size in options}
    sides[f"{fewest:,} queues, bodies read"] = _start_side(stack, bench, "stats-naive", options[fewest]), fewest
    for side, _ in sides.values():
        side.run()
    calls = {name: partial(_count_checked, side, size) for name, (side, size) in sides.items()}
    runs = bench.interleave(calls, rounds)
    costs = {name: [run.seconds / size * 1e6 for run in runs[name]] for name, (_, size) in sides.items()}
    fewest_name, *others, many, naive = costs
    rows = [
        Row(name, costs[name], "µs a queue", {"CPU µs a queue": min(run.cpu for run in runs[name]) / size * 1e6})
        for name, (_, size) in sides.items()
    ]
    verdicts = [
        *(
            Verdict(
                f"a queue's cost: {many} / {name}",
                pairwise_ratios(costs[many], costs[name]),
                goal=MAX_FLAT_RATIO,
                better="lower",
            )
            for name in others
        ),
        Verdict(f"{naive} / measured", pairwise_ratios(costs[naive], costs[fewest_name])),
    ]
    notes = [
        f"local[2]; every queue holds a message of {len(BODY)} B. Rows of messages that came to Spark: none.",
        "A job costs about a second whatever it does, which few queues share.",
    ]
    return Report("", "", rows, verdicts, notes)


def _start_side(stack: contextlib.ExitStack, bench: Bench, kind: str, options: Mapping[str, str]) -> Side:
    number = len(list(bench.directory.glob("*.log")))
    side = Side(f"{kind}-{number}", kind, bench.directory, {"spark.driver.memory": "1g"}, options)
    stack.callback(side.stop)
    return side


def _count_checked(side: Side, size: int) -> Run:
    """Runs a side. Raises Void if it did not count one message in each queue."""
    run = side.run()
    if run.rows != size:
        raise Void(f"{side.name} found {run.rows:,} messages in {size:,} queues")
    return run


def _fill(directory: Path, count: int) -> None:
    """Writes one message into each queue of :func:`service.fill_queues`, bypassing the store."""
    connection = apsw.Connection(str(directory / FILE))
    now = ids.now_ticks()
    with connection:
        qids = [row[0] for row in connection.execute("SELECT qid FROM queues ORDER BY qid LIMIT ?", (count,))]
        connection.executemany(
            "INSERT INTO messages (queue_partition, ticks, low, expires, body) VALUES (?, ?, ?, ?, ?)",
            ((qid << 8 | 1, now + n, LOW, now + n + LIFE_TICKS, BODY) for n, qid in enumerate(qids)),
        )
        connection.executemany(
            "INSERT INTO expiry_windows (queue_partition, expired_by, message_count, first_ticks, last_ticks, "
            "longest_ttl) VALUES (?, ?, 1, ?, ?, ?)",
            (
                (qid << 8 | 1, window_end(LIFE_TICKS, now + n + LIFE_TICKS), now + n, now + n, LIFE_TICKS)
                for n, qid in enumerate(qids)
            ),
        )
        connection.execute("UPDATE clock SET last_ticks = ?", (now + count,))
    connection.close()


def _create_queues(store: Store, count: int) -> None:
    """Creates queues named ``q0000000`` and so on, each with one message, from many threads."""
    now = ids.now_ticks()

    def create(number: int) -> None:
        queue, _ = bridge.run(store.catalogue.create_queue(service.APPLICATION, f"q{number:07d}", QueueSpec()))
        ticks = now + number
        bridge.run(store.bulk.load(queue, [Message(ticks, LOW, 1, ticks + LIFE_TICKS, BODY)]))

    with ThreadPoolExecutor(LOADERS) as pool:
        for _ in pool.map(create, range(count), chunksize=100):
            pass

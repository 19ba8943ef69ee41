"""Compares Spark's reads and writes on Cassandra with the JVM connector's."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.baselines import cassandra_table
from bench.harness import Bench, Void, measure
from bench.results import Report, Row, Verdict, pairwise_ratios
from bench.spark_side import Run, Side, connector_jars
from bench.started import nodes, on_cassandra, service
from bench.started.nodes import Nodes
from queuey.model import ids
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Message, Queue, QueueSpec
from queuey.storage import Store, bridge
from queuey.storage.range_scans import divide

PARTITIONS = 8
BODY = b"x" * 200
TTL = 3 * 86_400
TABLE = "messages_4d"
"""The table for messages with that TTL."""
WRITTEN_TABLE = "written"
"""The table that the connector writes to."""
WARM_UP_RUNS, RUNS = 3, 5


@measure("spark-scan", "Scanning a queue on Cassandra into Spark: queuey and the JVM connector")
def compare_scans(bench: Bench) -> Report:
    """Two sessions on one node each scan all rows into Spark's noop sink."""
    count = bench.count(300_000, 5_000)
    with nodes.cassandra(bench) as cassandra, contextlib.ExitStack() as stack:
        store = on_cassandra.prepare(cassandra)
        stack.callback(store.close)
        queue = _fill_queue(store, count)
        connector = {"keyspace": on_cassandra.KEYSPACE, "table": TABLE}
        runs = _run_sides(stack, bench, cassandra, "scan", _read_options(cassandra, queue), connector)
    note = f"{count:,} messages of {len(BODY)} B in {PARTITIONS} partitions, one node, local[2]."
    return _make_report(runs, count, note)


@measure(
    "spark-write",
    "Writing from Spark into a queue on Cassandra: queuey with reserved ids, the JVM connector's defaults",
)
def compare_writes(bench: Bench) -> Report:
    """All sides read the same Parquet file. Only the connector writes the ids in it; queuey reserves its own."""
    count = bench.count(300_000, 5_000)
    with nodes.cassandra(bench) as cassandra, contextlib.ExitStack() as stack:
        store = on_cassandra.prepare(cassandra)
        stack.callback(store.close)
        _create_baseline_table(cassandra)
        source = _write_parquet(bench.directory / "rows", count)
        connector = {"keyspace": cassandra_table.KEYSPACE, "table": WRITTEN_TABLE}
        runs = _run_sides(stack, bench, cassandra, "write", _write_options(cassandra), connector, rows=str(source))
        _require_all_rows(store, count * (bench.count(WARM_UP_RUNS, 1) + bench.count(RUNS, 1)))
    note = f"{count:,} rows of {len(BODY)} B over {PARTITIONS} partitions, one node, local[2]; fresh ids each round."
    return _make_report(runs, count, note)


def _run_sides(
    stack: contextlib.ExitStack,
    bench: Bench,
    cassandra: Nodes,
    action: str,
    ours: dict[str, str],
    connector: dict[str, str],
    **arguments: str,
) -> dict[str, list[Run]]:
    """Runs both sides in turn, each after some runs that warm it up."""
    sides = {
        name: _start_side(stack, bench, name, f"{action}-{name}", cassandra, options)
        for name, options in (("queuey", ours), ("connector", connector))
    }
    for side in sides.values():
        for _ in range(bench.count(WARM_UP_RUNS, 1)):
            side.run(**arguments)
    return bench.interleave(
        {name: partial(side.run, **arguments) for name, side in sides.items()}, bench.count(RUNS, 1)
    )


def _make_report(runs: dict[str, list[Run]], count: int, note: str) -> Report:
    speed = pairwise_ratios(*([run.seconds for run in runs[name]] for name in ("connector", "queuey")))
    cpu = pairwise_ratios(*([run.cpu for run in runs[name]] for name in ("queuey", "connector")))
    verdicts = [
        Verdict("rows/s: queuey / connector", speed, goal=0.95),
        Verdict("CPU: queuey / connector", cpu, goal=1.5, better="lower"),
    ]
    return Report("", "", _rows(runs, count), verdicts, [note])


def _start_side(
    stack: contextlib.ExitStack, bench: Bench, name: str, kind: str, cassandra: Nodes, options: dict[str, Any]
) -> Side:
    host, port = cassandra.address.hosts[0], str(cassandra.address.port)
    conf = {"spark.driver.memory": "2g"}
    if "connector" in kind:
        conf |= {
            "spark.jars": connector_jars(),
            "spark.cassandra.connection.host": host,
            "spark.cassandra.connection.port": port,
        }
    side = Side(name, kind, bench.directory, conf, options, cassandra.cpu_seconds)
    stack.callback(side.stop)
    return side


def _rows(runs: dict[str, list[Run]], count: int) -> list[Row]:
    return [
        Row(
            name,
            [count / run.seconds for run in side_runs],
            "rows/s",
            {
                "CPU µs per row": sorted(run.cpu for run in side_runs)[len(side_runs) // 2] / count * 1e6,
                "Cassandra's": sorted(run.behind for run in side_runs)[len(side_runs) // 2] / count * 1e6,
            },
        )
        for name, side_runs in runs.items()
    ]


def _fill_queue(store: Store, count: int) -> Queue:
    """Sets the queue's options, loads rows of one minute that ended ten seconds ago, and returns the queue."""
    queue = bridge.run(store.catalogue.queue(service.APPLICATION, "bench"))
    queue = bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=PARTITIONS, ttl=TTL)))
    newest = ids.now_ticks() - 10 * TICKS_PER_SECOND
    step = 60 * TICKS_PER_SECOND // count
    low_id_bits = ids.random_low()
    messages = (
        Message(
            newest - (count - number) * step,
            low_id_bits,
            number % PARTITIONS + 1,
            newest + TTL * TICKS_PER_SECOND,
            BODY.decode(),
        )
        for number in range(count)
    )
    bridge.run(store.bulk.load(queue, messages))
    return queue


def _read_options(cassandra: Nodes, queue: Queue) -> dict[str, str]:
    return {
        "store": cassandra.store_url(on_cassandra.KEYSPACE),
        "application": service.APPLICATION,
        "subscribe": queue.name,
    }


def _write_options(cassandra: Nodes) -> dict[str, str]:
    return {
        "store": cassandra.store_url(on_cassandra.KEYSPACE),
        "application": service.APPLICATION,
        "queue": "written",
        "create": "true",
        "partitions": str(PARTITIONS),
    }


def _create_baseline_table(cassandra: Nodes) -> None:
    """Creates the connector's table anew, with the columns and key of Queuey's message tables."""
    session = cassandra_table.connect(cassandra.address)
    session.execute(cassandra_table.CREATE_KEYSPACE, timeout=60)
    session.execute(f"DROP TABLE IF EXISTS {cassandra_table.KEYSPACE}.{WRITTEN_TABLE}", timeout=60)
    session.execute(
        f"CREATE TABLE {cassandra_table.KEYSPACE}.{WRITTEN_TABLE} (qid bigint, partition int, bucket bigint, "
        "id timeuuid, body blob, expires bigint, meta blob, PRIMARY KEY ((qid, partition, bucket), id))",
        timeout=60,
    )
    session.cluster.shutdown()


def _write_parquet(path: Path, count: int) -> Path:
    """Writes rows for both sides into four files of a new directory, in ascending order of their ids.

    Rounds ``count`` down to a multiple of four.
    """
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    path.mkdir()
    low, base = ids.random_low(), ids.now_ticks()
    rows_per_file = count // 4
    for file_number in range(4):
        numbers = range(file_number * rows_per_file, (file_number + 1) * rows_per_file)
        texts = [ids.to_hex((base + number, low)) for number in numbers]
        table = pa.table(
            {
                "value": pa.array([BODY] * rows_per_file, pa.binary()),
                "partition": pa.array([number % PARTITIONS + 1 for number in numbers], pa.int32()),
                "qid": pa.array([1] * rows_per_file, pa.int64()),
                "bucket": pa.array([1] * rows_per_file, pa.int64()),
                "id": [f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}" for text in texts],
                "expires": pa.array([base + TTL * TICKS_PER_SECOND] * rows_per_file, pa.int64()),
            }
        )
        parquet.write_table(table, path / f"{file_number}.parquet")
    return path


def _require_all_rows(store: Store, count: int) -> None:
    """Checks for a minute that queuey's rows become readable.

    Raises:
        Void: Rows are missing.
    """
    queue = bridge.run(store.catalogue.queue(service.APPLICATION, "written", fresh=True))
    rows, until = 0, time.monotonic() + 60
    # Ids are reserved ahead of time, so the last rows take longer than the read delay.
    while rows != count and time.monotonic() < until:
        on_cassandra.let_appear(store, queue)
        horizon, partitions = bridge.run(store.messages.inspect(queue))
        slices = divide(partitions, ids.FIRST, (horizon, ids.LOW_MIN), pieces=1)
        rows = sum(
            batch.num_rows
            for part in slices
            for batch in bridge.iterate(store.bulk.scan_arrow(queue, part, bodies=False))
        )
    if rows != count:
        raise Void(f"{rows:,} of {count:,} messages are there")

"""Child process that reads a Cassandra partition into Arrow, or writes rows in batches, with only the driver.

``python -m bench.baselines.arrow_rows read FETCH`` reads the rows of :func:`slices.fill` with the driver's own NumPy
decoder. ``python -m bench.baselines.arrow_rows write COUNT ROWS`` writes COUNT new rows in unlogged batches of ROWS, a
few of them in flight. Prints rows per second and CPU microseconds per row, measured after a warm-up.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import deque
from collections.abc import Callable

import pyarrow as pa
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Session
from cassandra.protocol import NumpyProtocolHandler
from cassandra.query import BatchStatement, BatchType

from bench.baselines import cassandra_table
from bench.baselines.slices import Id
from bench.load.traffic import bodies
from queuey import ids

SELECT = "SELECT timeuuid_as_blob(id), text_as_blob(body) FROM messages WHERE queue = ? AND partition = ?"
"""Selects blobs, because decoding UUIDs and strings would cost the driver more than everything else."""
PARTITION_ROWS = 50_000
MAX_IN_FLIGHT = 8
"""Max batches in flight."""


def make_reader(session: Session, fetch: int) -> Callable[[], int]:
    """Returns a function that reads a partition into record batches and counts the rows.

    Sets the NumPy decoder for the whole session.
    """
    session.client_protocol_handler = NumpyProtocolHandler
    session.cluster.profile_manager.profiles[EXEC_PROFILE_DEFAULT].row_factory = lambda _, rows: rows
    statement = session.prepare(SELECT)
    statement.fetch_size = fetch

    def read() -> int:
        row_count = 0
        result = session.execute(statement, (cassandra_table.QUEUE + 1, cassandra_table.PARTITION))
        while True:
            for key, body in (columns.values() for columns in result.current_rows):
                arrays = [pa.array(key, pa.binary(16)), pa.array(body, pa.binary())]
                row_count += len(pa.record_batch(arrays, names=["id", "body"]))
            if not result.has_more_pages:
                return row_count
            result.fetch_next_page()

    return read


def make_writer(session: Session, count: int, rows: int) -> Callable[[], int]:
    """Returns a function that writes the rows and counts them; their partitions are as large as the service's."""
    statement, texts = session.prepare(cassandra_table.INSERT), bodies(1000)

    def write() -> int:
        first, in_flight = ids.now_ticks(), deque[object]()
        for start in range(0, count, rows):
            batch = BatchStatement(BatchType.UNLOGGED)
            for n in range(start, min(start + rows, count)):
                batch.add(statement, (first, n // PARTITION_ROWS, Id(first + n), texts[n % 1000]))
            in_flight.append(session.execute_async(batch))
            if len(in_flight) >= MAX_IN_FLIGHT:
                in_flight.popleft().result()  # type: ignore[attr-defined]
        for future in in_flight:
            future.result()  # type: ignore[attr-defined]
        return count

    return write


def time_second_run(work: Callable[[], int]) -> tuple[float, float]:
    """Runs ``work`` twice; returns rows per second and CPU microseconds per row of the second run."""
    work()
    gc.freeze()
    began, spent = time.perf_counter(), time.process_time()
    rows = work()
    elapsed, cpu = time.perf_counter() - began, time.process_time() - spent
    return rows / elapsed, cpu * 1e6 / rows


def main() -> None:
    action, *numbers = sys.argv[1:]
    session = cassandra_table.connect(cassandra_table.Address.from_environment())
    arguments = [int(number) for number in numbers]
    work = make_reader(session, *arguments) if action == "read" else make_writer(session, *arguments)
    print(json.dumps(time_second_run(work)))
    session.cluster.shutdown()


if __name__ == "__main__":
    main()

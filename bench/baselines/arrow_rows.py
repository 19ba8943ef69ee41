"""One process that reads a partition of Cassandra into Arrow, or writes one in batches, with nothing but the driver.

``python -m bench.baselines.arrow_rows read FETCH`` reads what :func:`slices.fill` wrote, by the driver's own
decoder into NumPy; ``… write COUNT ROWS`` writes fresh rows in unlogged batches of so many, some on the way at a time.
Prints rows a second and microseconds of its CPU a row, once warm.
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
"""As blobs: making UUIDs and strings of them costs the driver more than everything else."""
PARTITION_ROWS = 50_000
FLYING = 8


def reader(session: Session, fetch: int) -> Callable[[], int]:
    """Returns what reads the partition into Arrow, page by page, and counts its rows."""
    session.client_protocol_handler = NumpyProtocolHandler
    session.cluster.profile_manager.profiles[EXEC_PROFILE_DEFAULT].row_factory = lambda _, rows: rows
    statement = session.prepare(SELECT)
    statement.fetch_size = fetch

    def read() -> int:
        found = 0
        result = session.execute(statement, (cassandra_table.QUEUE + 1, cassandra_table.PARTITION))
        while True:
            for key, body in (columns.values() for columns in result.current_rows):
                arrays = [pa.array(key, pa.binary(16)), pa.array(body, pa.binary())]
                found += len(pa.record_batch(arrays, names=["id", "body"]))
            if not result.has_more_pages:
                return found
            result.fetch_next_page()

    return read


def writer(session: Session, count: int, rows: int) -> Callable[[], int]:
    """Returns what writes so many rows and counts them; their partitions are as large as the service's."""
    statement, texts = session.prepare(cassandra_table.INSERT), bodies(1000)

    def write() -> int:
        first, flying = ids.now_ticks(), deque[object]()
        for at in range(0, count, rows):
            batch = BatchStatement(BatchType.UNLOGGED)
            for n in range(at, min(at + rows, count)):
                batch.add(statement, (first, n // PARTITION_ROWS, Id(first + n), texts[n % 1000]))
            flying.append(session.execute_async(batch))
            if len(flying) >= FLYING:
                flying.popleft().result()  # type: ignore[attr-defined]
        for future in flying:
            future.result()  # type: ignore[attr-defined]
        return count

    return write


def timed(work: Callable[[], int]) -> tuple[float, float]:
    """Does something twice; returns rows a second and microseconds of CPU a row of the second time."""
    work()
    gc.freeze()
    began, spent = time.perf_counter(), time.process_time()
    rows = work()
    claimed, cpu = time.perf_counter() - began, time.process_time() - spent
    return rows / claimed, cpu * 1e6 / rows


def main() -> None:
    """Does what the command line says."""
    action, *numbers = sys.argv[1:]
    session = cassandra_table.connect(cassandra_table.Address.from_environment())
    given = [int(number) for number in numbers]
    work = reader(session, *given) if action == "read" else writer(session, *given)
    print(json.dumps(timed(work)))
    session.cluster.shutdown()


if __name__ == "__main__":
    main()

"""Child process that writes batches of 100 rows to Cassandra or reads slices of 100, without a service.

``python -m bench.baselines.slices insert|read CALLERS SECONDS`` prints rows per second and CPU microseconds per row.
Each caller is a thread that waits for its answer; the best number of callers is the baseline. Ids are counted up from
the clock, because ``uuid.uuid1`` alone would cost more than everything else.
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable

from cassandra.cluster import Session
from cassandra.query import BatchStatement, BatchType

from bench.baselines import cassandra_table
from bench.load.traffic import bodies
from queuey import ids

ROWS = 100
NODE = 0x8080_0123_4567_89AB
VERSION = 1 << 76


class Id:
    """A version 1 UUID, reduced to what the driver needs: creating a ``uuid.UUID`` costs a sixth of the whole row."""

    __slots__ = ("bytes",)

    def __init__(self, ticks: int) -> None:
        low, mid, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48
        self.bytes = (low << 96 | mid << 80 | VERSION | high << 64 | NODE).to_bytes(16, "big")


class Insert:
    """Writes a batch of :data:`ROWS` new rows at each call, with ids that no other caller uses."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.statement = session.prepare(cassandra_table.INSERT)
        self.texts = [bodies(ROWS, seed=seed) for seed in range(10)]
        self.ticks = itertools.count(ids.now_ticks() + number * (1 << 32), ROWS)
        self.turn = itertools.cycle(self.texts)

    def __call__(self) -> int:
        statement, first = self.statement, next(self.ticks)
        batch = BatchStatement(BatchType.UNLOGGED)
        for tick, text in enumerate(next(self.turn), first):
            batch.add(statement, (cassandra_table.QUEUE, cassandra_table.PARTITION, Id(tick), text))
        self.session.execute(batch)
        return ROWS


class Read:
    """Reads slices of the rows of :func:`fill`, in random order."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.statement = session.prepare(cassandra_table.SELECT)
        starts = [Id(tick) for tick in range(FIRST_TICKS, FIRST_TICKS + count_rows(session), ROWS)]
        random.Random(number).shuffle(starts)
        self.starts = itertools.cycle(starts)

    def __call__(self) -> int:
        values = (cassandra_table.QUEUE + 1, cassandra_table.PARTITION, next(self.starts), ROWS)
        return len(self.session.execute(self.statement, values).all())


FIRST_TICKS = ids.seconds_to_ticks(1_700_000_000)
"""Ticks of the first row's id; each further row is one tick later."""
WORK: dict[str, Callable[[Session, int], Callable[[], int]]] = {"insert": Insert, "read": Read}


def count_rows(session: Session) -> int:
    sql = "SELECT count(*) FROM messages WHERE queue = %s AND partition = %s"
    rows: int = session.execute(sql, (cassandra_table.QUEUE + 1, cassandra_table.PARTITION)).one()[0]
    return rows


def fill(address: cassandra_table.Address, count: int) -> None:
    """Writes ``count`` rows with ascending ids into a partition of their own, in batches of :data:`ROWS`."""
    session = cassandra_table.connect(address)
    statement, texts = session.prepare(cassandra_table.INSERT), bodies(1000)
    for start in range(0, count, ROWS):
        batch = BatchStatement(BatchType.UNLOGGED)
        for n in range(start, start + ROWS):
            key = (cassandra_table.QUEUE + 1, cassandra_table.PARTITION, Id(FIRST_TICKS + n))
            batch.add(statement, (*key, texts[n % 1000]))
        session.execute(batch)
    session.cluster.shutdown()


def run_callers(work: Callable[[Session, int], Callable[[], int]], callers: int, seconds: float) -> tuple[float, float]:
    """Runs the callers concurrently after one uncounted call each; returns rows per second and CPU µs per row."""
    session = cassandra_table.connect(cassandra_table.Address.from_environment())
    calls = [work(session, number) for number in range(callers)]
    for call in calls:
        call()
    rows_by_caller = [0] * callers

    def loop(number: int) -> None:
        call = calls[number]
        while True:  # at least once, even if the thread starts late
            rows_by_caller[number] += call()
            if time.perf_counter() >= until:
                break

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(callers)]
    gc.freeze()
    began, spent = time.perf_counter(), time.process_time()
    until = began + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows, cpu, elapsed = sum(rows_by_caller), time.process_time() - spent, time.perf_counter() - began
    session.cluster.shutdown()
    return rows / elapsed, cpu * 1e6 / rows


def main() -> None:
    action, callers, seconds = sys.argv[1:]
    print(json.dumps(run_callers(WORK[action], int(callers), float(seconds))))


if __name__ == "__main__":
    main()

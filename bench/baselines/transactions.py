"""Jobs that cassandra-driver alone hands out: a lightweight transaction claims one, so no two callers get it.

``BENCH_CASSANDRA=… python -m bench.baselines.transactions FORM SECONDS CALLERS`` prints jobs a second. The form
``claims`` only claims, jobs that nobody has looked for and that have no body. The form ``jobs`` is what a consumer
needs: it reads jobs, a hundred at a time, claims each, and deletes it if it is still its own.

Jobs lie in as many Cassandra partitions as the service's queue has, because somebody has to find those that are free,
and no two callers want the same one.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from cassandra.cluster import Session

from bench.baselines.slices import Id, write
from bench.baselines.wide_rows import PARTITIONS, QUEUE, Address, connect
from queuey.ids import now_ticks

ROW = "WHERE queue = ? AND partition = ? AND id = ?"
INSERT = "INSERT INTO jobs (queue, partition, id, body) VALUES (?, ?, ?, ?)"
SELECT = "SELECT id, body FROM jobs WHERE queue = ? AND partition = ? AND id > ? LIMIT 100"
CLAIM = f"UPDATE jobs SET owner = ? {ROW} IF owner = null"
REMOVE = f"DELETE FROM jobs {ROW} IF owner = ?"
FASTEST = 400
"""Jobs a second that one caller is given."""


def main() -> None:
    """Runs one form with so many callers for so many seconds."""
    form, seconds, callers = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    session = connect(Address.from_environment())
    work = claims if form == "claims" else partial(jobs, count=round(FASTEST * seconds))
    with ThreadPoolExecutor(callers) as pool:
        steps = [*pool.map(partial(work, session), range(callers))]
        begin = time.perf_counter()
        done = sum(pool.map(partial(_run, begin + seconds), steps))
        spent = time.perf_counter() - begin
    session.cluster.shutdown()
    print(done / spent)


def claims(session: Session, caller: int) -> Iterator[None]:
    """Claims one job after the other."""
    claim = _settled(session, CLAIM)
    while True:
        yield claim(str(caller), QUEUE, caller % PARTITIONS, uuid.uuid1())


def jobs(session: Session, caller: int, count: int) -> Iterator[None]:
    """Writes as many jobs, and returns an iterator that reads, claims and deletes one after the other."""
    key, first = (QUEUE, caller % PARTITIONS), now_ticks() + caller * 10_000_000
    write(session, INSERT, key, first, count)
    return _all_of(session, str(caller), key, Id(first - 1))


def _all_of(session: Session, caller: str, key: tuple[int, int], after: object) -> Iterator[None]:
    select, claim, remove = session.prepare(SELECT), _settled(session, CLAIM), _settled(session, REMOVE)
    while rows := session.execute(select, (*key, after)).all():
        for job, _ in rows:
            claim(caller, *key, job)
            yield remove(*key, job, caller)
        after = rows[-1][0]


def _settled(session: Session, text: str) -> Callable[..., None]:
    statement = session.prepare(text)

    def until_applied(*values: object) -> None:
        while not session.execute(statement, values).one()[0]:
            pass

    return until_applied


def _run(end: float, steps: Iterator[None]) -> int:
    done = 0
    for _ in steps:
        done += 1
        if time.perf_counter() > end:
            return done
    raise RuntimeError(f"all {done} jobs of a caller are done: raise FASTEST")


if __name__ == "__main__":
    main()

"""Writes at reserved ids on Cassandra, ended at any step and repeated, in time and too late. No Spark runs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from queuey import ids
from queuey.spark.sink.exactly_once import Reserver, TargetQueue, WriteCounts
from queuey.spark.sink.ledger_entry import decode
from queuey.storage import bridge
from tests.spark.attempts import Killed, Mortal, Reader, Texts
from tests.spark.kept import Kept

WAYS = ("before", "half", "after")
STEPS = 3
"""The steps of a chunk: reserved, loaded, noted."""
TEXTS = [f"m{number}" for number in range(300)]


def run_attempt(kept: Kept, name: str, mortal: Mortal | None, lead: float) -> WriteCounts:
    queue = kept.queue(name, partitions=2)
    store = kept.store if mortal is None else mortal.store
    return Reserver(TargetQueue(store, queue), name, lead=lead).write(0, Texts.chunk(*TEXTS))


def scenario(kept: Kept, name: str, at: int, when: str, *, late: bool) -> str:
    """Kills an attempt, lets another one finish, and returns the errors in the result; empty if none."""
    lead = 1.5 if late else 8.0
    with pytest.raises(Killed):
        run_attempt(kept, name, Mortal(kept.store, at, when), lead)
    queue = kept.queue(name, partitions=2)
    reader = Reader(kept.store, queue)
    if late and (raw := bridge.run(kept.store.ledger.entry(name, 0))) is not None:
        kept.settle(queue, (decode(raw).end, ids.LOW_MIN))
        reader.read()
    counts = run_attempt(kept, name, None, lead)
    entry = decode(bridge.run(kept.store.ledger.entry(name, 0)) or b"")
    kept.settle(queue, (entry.end, ids.LOW_MIN))
    reader.read()
    found = sorted(str(message.body) for message in kept.all(queue))
    problems = []
    if found != sorted(TEXTS):
        problems.append(f"{len(found)} rows are there, {len(set(found))} different ones")
    if sorted(reader.seen) != sorted(TEXTS):
        problems.append(f"a reader got {len(reader.seen)}, {len(set(reader.seen))} different ones")
    if counts.moved and not late:
        problems.append(f"{counts} although it was in time")
    if late and (at, when) in {(0, "after"), (1, "before"), (1, "half")} and not counts.moved:
        problems.append(f"{counts} although it was too late")
    return f"{name}: {', '.join(problems)}" if problems else ""


def scenarios() -> Iterator[tuple[int, str, bool]]:
    for at in range(STEPS):
        for when in WAYS:
            if when != "half" or at == 1:
                yield at, when, False
                yield at, when, True


def test_attempts_that_end_at_any_step_are_done_again(clustered: Kept) -> None:
    """Wherever an attempt ends, in time and too late, every row is stored once and a reader gets it once."""
    cases = list(scenarios())
    with ThreadPoolExecutor(len(cases)) as pool:
        running = [
            pool.submit(scenario, clustered, f"s{at}-{when}-{'late' if late else 'early'}", at, when, late=late)
            for at, when, late in cases
        ]
    assert [problem for one in running if (problem := one.result(3600))] == []

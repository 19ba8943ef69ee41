"""Child process that inserts into SQLite or reads from it through apsw, without a service.

``python -m bench.baselines.rows insert|read VARIANT FILE SECONDS`` prints rows per second. The variants do the same
work in different ways; the fastest one is the baseline.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec

from bench.baselines import table
from bench.load.traffic import bodies
from queuey import ids

ROWS = 100

SLICE = (
    "FROM messages WHERE queue_partition = ? AND (ticks, low) >= (?, ?) AND expires > ? ORDER BY ticks, low LIMIT 100"
)
SELECT = f"SELECT ticks, low, body {SLICE}"
SELECT_FORMATTED = (
    "SELECT printf('%08x%04x1%03x', ticks & 0xFFFFFFFF, (ticks >> 32) & 0xFFFF, ticks >> 48), low, ticks, body\n"
    f"{SLICE}"
)


class ShownMessage(msgspec.Struct, gc=False):
    message_id: str
    timestamp: str
    partition: int
    body: str


class Answer(msgspec.Struct, gc=False):
    status: str
    messages: list[ShownMessage]


def make_insert_many(connection: apsw.Connection) -> Callable[[int, list[str]], None]:
    sql = table.INSERT + "(?, ?, ?, ?, ?, NULL)"
    low = ids.random_low()

    def insert(tick: int, texts: list[str]) -> None:
        expires = tick + table.TTL_TICKS
        rows = [(table.QP, tick + n, low, expires + n, text) for n, text in enumerate(texts)]
        connection.executemany(sql, rows)

    return insert


def make_insert_wide(connection: apsw.Connection) -> Callable[[int, list[str]], None]:
    sql = table.INSERT + ", ".join(["(?, ?, ?, ?, ?, NULL)"] * ROWS)
    low = ids.random_low()

    def insert(tick: int, texts: list[str]) -> None:
        expires = tick + table.TTL_TICKS
        values: list[int | str] = []
        for n, text in enumerate(texts):
            values += (table.QP, tick + n, low, expires + n, text)
        connection.execute(sql, values)

    return insert


INSERTS = {"executemany": make_insert_many, "one-statement": make_insert_wide}
"""Each returns a function that inserts texts with ascending ids from a tick on; the caller commits."""


def insert_for_seconds(path: Path, variant: str, seconds: float) -> float:
    """Commits 100 rows at a time; returns rows per second."""
    connection = table.connect(path)
    insert = INSERTS[variant](connection)
    texts = [bodies(ROWS, seed=seed) for seed in range(10)]
    tick = ids.now_ticks()
    begin = now = time.perf_counter()
    commits = 0
    while now - begin < seconds:
        connection.execute("BEGIN IMMEDIATE")
        tick = max(ids.now_ticks(), tick + ROWS)
        insert(tick, texts[commits % 10])
        connection.execute("COMMIT")
        commits += 1
        now = time.perf_counter()
    return commits * ROWS / (now - begin)


def read_in_python(connection: apsw.Connection, qp: int, start: ids.Position) -> list[ShownMessage]:
    hexes, stamp = ids.to_hex, ids.timestamp_text
    return [
        ShownMessage(hexes((ticks, low)), stamp(ticks), 1, body)
        for ticks, low, body in connection.execute(SELECT, (qp, *start, ids.now_ticks()))
    ]


def read_formatted_in_sql(connection: apsw.Connection, qp: int, start: ids.Position) -> list[ShownMessage]:
    """Reads a slice and lets SQLite format the first half of the ids; the second halves are cached per slice."""
    lows: dict[int, str] = {}
    messages = []
    format_timestamp = ids.timestamp_text
    for head, low, ticks, body in connection.execute(SELECT_FORMATTED, (qp, *start, ids.now_ticks())):
        tail = lows.get(low)
        if tail is None:
            tail = lows[low] = ids.low_hex(low)
        messages.append(ShownMessage(head + tail, format_timestamp(ticks), 1, body))
    return messages


def read_formatting_halves(connection: apsw.Connection, qp: int, start: ids.Position) -> list[ShownMessage]:
    """Reads a slice and formats in Python only what differs from row to row."""
    lows: dict[int, str] = {}
    messages = []
    epoch, second = ids.EPOCH_TICKS, ids.TICKS_PER_SECOND
    for ticks, low, body in connection.execute(SELECT, (qp, *start, ids.now_ticks())):
        tail = lows.get(low)
        if tail is None:
            tail = lows[low] = ids.low_hex(low)
        text = f"{ticks:016x}"
        seconds, fraction = divmod(ticks - epoch, second)
        messages.append(ShownMessage(f"{text[8:]}{text[4:8]}1{text[1:4]}{tail}", f"{seconds}.{fraction:07d}", 1, body))
    return messages


READS = {"python": read_in_python, "sql": read_formatted_in_sql, "halves": read_formatting_halves}


def read_for_seconds(path: Path, variant: str, seconds: float) -> float:
    """Reads slices of 100 in random order and encodes each as JSON; returns rows per second."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=20)
    connection.execute("PRAGMA cache_size = -16384")
    qp: int = connection.execute("SELECT queue_partition FROM messages LIMIT 1").fetchall()[0][0]  # type: ignore[assignment]
    positions: list[Any] = connection.execute("SELECT ticks, low FROM messages ORDER BY ticks").fetchall()
    starts: list[ids.Position] = positions[: max(1, len(positions) - ROWS) : ROWS]
    random.Random(2).shuffle(starts)
    read, encode = READS[variant], msgspec.json.Encoder().encode
    begin = now = time.perf_counter()
    slices = rows = 0
    while now - begin < seconds:
        shown = read(connection, qp, starts[slices % len(starts)])
        encode(Answer("ok", shown))
        slices += 1
        rows += len(shown)
        now = time.perf_counter()
    return rows / (now - begin)


def main() -> None:
    action, variant, path, seconds = sys.argv[1:]
    gc.freeze()
    work = insert_for_seconds if action == "insert" else read_for_seconds
    print(work(Path(path), variant, float(seconds)))


if __name__ == "__main__":
    main()

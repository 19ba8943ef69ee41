"""Child process that inserts into SQLite or reads from it through apsw, without a service.

``python -m bench.baselines.rows insert|read FILE SECONDS`` prints rows per second.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import msgspec

from bench.baselines import table
from bench.load.traffic import bodies
from queuey.model import ids

ROWS = 100

SLICE = (
    "FROM messages WHERE queue_partition = ? AND (ticks, low) >= (?, ?) AND expires > ? ORDER BY ticks, low LIMIT 100"
)
SELECT = f"SELECT ticks, low, body {SLICE}"


class ShownMessage(msgspec.Struct, gc=False):
    message_id: str
    timestamp: str
    partition: int
    body: str


class Answer(msgspec.Struct, gc=False):
    status: str
    messages: list[ShownMessage]


def insert_for_seconds(path: Path, seconds: float) -> float:
    """Commits 100 rows at a time; returns rows per second."""
    connection = table.connect(path)
    sql, low = table.INSERT + "(?, ?, ?, ?, ?, NULL)", ids.random_low()
    texts = [bodies(ROWS, seed=seed) for seed in range(10)]
    tick = ids.now_ticks()
    begin = now = time.perf_counter()
    commits = 0
    while now - begin < seconds:
        connection.execute("BEGIN IMMEDIATE")
        tick = max(ids.now_ticks(), tick + ROWS)
        expires = tick + table.TTL_TICKS
        rows = [(table.QP, tick + n, low, expires + n, text) for n, text in enumerate(texts[commits % 10])]
        connection.executemany(sql, rows)
        connection.execute("COMMIT")
        commits += 1
        now = time.perf_counter()
    return commits * ROWS / (now - begin)


def read_slice(connection: apsw.Connection, qp: int, start: ids.Position) -> list[ShownMessage]:
    """Reads a slice and formats in Python only what differs from row to row."""
    lows: dict[int, str] = {}
    messages = []
    epoch, second = ids.EPOCH_TICKS, ids.TICKS_PER_SECOND
    for ticks, low, body in connection.execute(SELECT, (qp, *start, ids.now_ticks())):
        tail = lows.get(low)
        if tail is None:
            tail = lows[low] = ids.to_hex((ticks, low))[16:]
        text = f"{ticks:016x}"
        seconds, fraction = divmod(ticks - epoch, second)
        messages.append(ShownMessage(f"{text[8:]}{text[4:8]}1{text[1:4]}{tail}", f"{seconds}.{fraction:07d}", 1, body))
    return messages


def read_for_seconds(path: Path, seconds: float) -> float:
    """Reads slices of 100 in random order and encodes each as JSON; returns rows per second."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=20)
    connection.execute("PRAGMA cache_size = -16384")
    qp: int = connection.execute("SELECT queue_partition FROM messages LIMIT 1").fetchall()[0][0]  # type: ignore[assignment]
    positions: list[Any] = connection.execute("SELECT ticks, low FROM messages ORDER BY ticks").fetchall()
    starts: list[ids.Position] = positions[: max(1, len(positions) - ROWS) : ROWS]
    random.Random(2).shuffle(starts)
    encode = msgspec.json.Encoder().encode
    begin = now = time.perf_counter()
    slices = rows = 0
    while now - begin < seconds:
        shown = read_slice(connection, qp, starts[slices % len(starts)])
        encode(Answer("ok", shown))
        slices += 1
        rows += len(shown)
        now = time.perf_counter()
    return rows / (now - begin)


def main() -> None:
    action, path, seconds = sys.argv[1:]
    gc.freeze()
    work = insert_for_seconds if action == "insert" else read_for_seconds
    print(work(Path(path), float(seconds)))


if __name__ == "__main__":
    main()

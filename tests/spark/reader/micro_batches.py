"""Runs a stream reader as Spark does, in this process: offsets go through JSON, readers and tasks through pickle."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from queuey.model.messages import NewMessage, Queue, QueueSpec
from queuey.spark.options import read_options
from queuey.spark.source import columns
from queuey.spark.source.read_task import MAX_BATCH_ROWS
from queuey.spark.source.stream_reader import QueueyStreamReader
from queuey.storage import Store, bridge
from tests.backends import APP

Row = dict[str, Any]
DAY = 86_400
Options = Callable[..., dict[str, str]]
"""Makes options of a read."""


class Query:
    """A streaming query: the content of its checkpoint, and the reader of its present run.

    Attributes:
        ends: The end of each batch that was written to the checkpoint.
        done: The number of completed batches.
    """

    def __init__(self, options: Mapping[str, str], *, available_now: bool = False, rows: int = MAX_BATCH_ROWS) -> None:
        self.options = options
        self.rows = rows
        self.ends: list[str] = []
        self.done = 0
        self.start(available_now=available_now)

    def start(self, options: Mapping[str, str] | None = None, *, available_now: bool = False) -> None:
        """Starts a run, with the same options or others; the last end must be readable, and give no tasks."""
        if options is not None:
            self.options = options
        chosen, schema = read_options(self.options, streaming=True), columns.read_schema(headers=False)
        # It answers at once without new messages.
        self.reader = QueueyStreamReader(chosen, schema, idle_pause=0.0, rows=self.rows)
        if self.ends:
            latest = json.loads(self.ends[-1])
            assert not self.reader.partitions(latest, latest)
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def begin(self, limit: ReadLimit | None = None) -> bool:
        """Plans a batch and writes it down; returns whether there is one. A batch already written down comes first."""
        if self.done < len(self.ends):
            return True
        start = self._start_of(len(self.ends))
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit or self.reader.getDefaultReadLimit()))
        if self.ends and end == self.ends[-1]:
            return False
        self.ends.append(end)
        return True

    def tasks(self) -> list[InputPartition]:
        return list(self.reader.partitions(json.loads(self._start_of(self.done)), json.loads(self.ends[self.done])))

    def run(self) -> list[Row]:
        """Runs the begun batch, and commits the one before it; returns its rows."""
        rows: list[Row] = []
        for task in self.tasks():
            copy = pickle.loads(pickle.dumps(self.reader))
            for batch in copy.read(pickle.loads(pickle.dumps(task))):
                rows += batch.to_pylist()
        if self.done:
            self.reader.commit(json.loads(self.ends[self.done - 1]))
        self.done += 1
        return rows

    def batch(self, limit: ReadLimit | None = None) -> list[Row] | None:
        return self.run() if self.begin(limit) else None

    def rest(self, limit: ReadLimit | None = None) -> list[Row]:
        rows: list[Row] = []
        while (more := self.batch(limit)) is not None:
            rows += more
        return rows

    def _start_of(self, number: int) -> str:
        return self.ends[number - 1] if number else json.dumps(self.reader.initialOffset())


ALL = ReadAllAvailable()


def create(store: Store, name: str = "a", *, partitions: int = 1, ttl: int | None = None) -> Queue:
    return bridge.run(store.catalogue.create_queue(APP, name, QueueSpec(partitions=partitions, ttl=ttl)))[0]


def send(
    store: Store, name: str, texts: Sequence[str], partition: int = 1, *, ttl: int = DAY, delay: float = 0
) -> None:
    bridge.run(
        store.messages.append(
            bridge.run(store.catalogue.queue(APP, name, fresh=True)),
            [NewMessage(text, partition, ttl, delay=delay) for text in texts],
        )
    )


def values(rows: list[Row] | None) -> list[str]:
    assert rows is not None
    return [row["value"].decode() for row in rows]


def make_texts(count: int, first: int = 0) -> list[str]:
    return [f"m{number}" for number in range(first, first + count)]

"""A stream that cannot start, and raises the reason at Spark's first call."""

# ruff: noqa: ARG002 - whatever is asked for, the answer is the same

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from queuey.errors import QueueyError


class FailingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises, later, an error that occurred when the reader was made, because Spark would have shown another one.

    Args:
        error: What is wrong.
    """

    def __init__(self, error: QueueyError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error

"""A reader of a stream that cannot start: raises the reason at Spark's first call."""

# ruff: noqa: ARG002 - all methods raise the same error

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from queuey.model.errors import QueueyError


class FailingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises an error of the constructor later, because Spark would replace an error raised there.

    Args:
        error: The error to raise.
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

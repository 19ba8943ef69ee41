"""Queues as a source and a sink of Spark.

::

    from queuey.spark import register

    register(spark)
    spark.read.format("queuey").option("subscribe", "orders").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Makes the format ``queuey`` known to a session. Doing it again does no harm."""
    from queuey.spark.source import QueueySource

    spark.dataSource.register(QueueySource)

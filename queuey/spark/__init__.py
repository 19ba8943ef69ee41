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

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Makes the format ``queuey`` known to a session, and turns on that filters are handed to it."""
    from queuey.spark.source import QueueySource

    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(QueueySource)

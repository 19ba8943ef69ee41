"""Queues as a source and a sink of Spark, in batches and streams, for any store.

::

    from queuey.spark import register

    register(spark)
    spark.read.format("queuey").option("subscribe", "orders").load()

Options are named as in Spark's Kafka source and are not case-sensitive. Unknown options are refused.

==============================  =====================================================================================
which store
------------------------------  -------------------------------------------------------------------------------------
``data``, ``store``, …          any setting of the store by its name; else from the environment, as for the service
``cassandra_password``          the place of the password, ``env:NAME`` or ``file:PATH``; never the password itself
``config``                      a TOML file with settings, on every machine
``application``                 the application that owns the queues; not needed if the store has only one
------------------------------  -------------------------------------------------------------------------------------
read: which queues              exactly one of
------------------------------  -------------------------------------------------------------------------------------
``subscribe``                   names, separated by commas
``subscribePattern``            a regular expression that matches the whole name
``assign``                      partitions: ``{"orders":[1,2]}``
------------------------------  -------------------------------------------------------------------------------------
read: start and end             the first option that is given counts
------------------------------  -------------------------------------------------------------------------------------
``startingTimestamp``           ms since 1970
``startingOffsetsByTimestamp``  ``{"orders":{"1":ms,"2-4":ms}}``
``startingOffsets``             ``earliest`` (a batch's default), ``latest`` (a stream's), or ids of messages:
                                ``{"orders":{"1":"<id>","2-4":"earliest"}}``, where -2 is earliest and -1 latest
``endingTimestamp``, …          the exclusive end of a batch: the same three options, default ``latest``
------------------------------  -------------------------------------------------------------------------------------
read: how
------------------------------  -------------------------------------------------------------------------------------
``includeHeaders``              add the column ``headers`` (false)
``failOnDataLoss``              fail if messages to be read are gone (true)
``minPartitions``               approximate min number of tasks
``maxRecordsPerPartition``      batches only: approximate max messages per task
``maxOffsetsPerTrigger``        streams only: max messages per micro-batch
``group``                       streams only: record progress as offsets of this consumer group
------------------------------  -------------------------------------------------------------------------------------
write
------------------------------  -------------------------------------------------------------------------------------
``queue`` or ``topic``          the target of all rows; without it, the column ``queue`` names the target of each row
``ttl``                         TTL in seconds of rows without their own
``run``                         batches only: name of the write; repeated writes with one name write each row once
``lead``                        seconds by which ids are reserved ahead of the clock (10)
``rate``                        max messages a second over all tasks
``create``, ``partitions``      create the queue if it does not exist, with this number of partitions
==============================  =====================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuey.model.extras import install_command
from queuey.spark.errors import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

OLDEST = (4, 2)
"""Version of PySpark, the first one with read limits and ``availableNow`` for streams of Python sources."""


def register(spark: SparkSession) -> None:
    """Registers the format ``queuey`` in a session. Idempotent.

    ::

        register(spark)
        spark.read.format("queuey").option("subscribe", "orders").load().select("id", "value").show()

    Raises:
        SparkMissing: PySpark is older than 4.2.
    """
    import pyspark

    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < OLDEST:
        raise SparkMissing(
            f"PySpark {pyspark.__version__} is too old: queues need {'.'.join(map(str, OLDEST))} or later, here and on "
            f"the cluster. Install it: {install_command('spark')}"
        )
    from queuey.spark.data_source import QueueySource

    spark.dataSource.register(QueueySource)

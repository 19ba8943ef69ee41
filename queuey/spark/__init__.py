"""Queues as a source and a sink of Spark, in batches and streams, over any store.

::

    from queuey.spark import register

    register(spark)
    spark.read.format("queuey").option("subscribe", "orders").load()

Names of options are those of Spark's Kafka source and not case-sensitive. Unknown ones are refused.

==============================  =====================================================================================
which store
------------------------------  -------------------------------------------------------------------------------------
``data``, ``store``, …          any setting of the store by its name; else from the environment, as for the service
``cassandra_password``          where the password is, ``env:NAME`` or ``file:PATH``; never the password
``config``                      a TOML file with settings, on every machine
``application``                 whose queues; not needed where the store has one application
------------------------------  -------------------------------------------------------------------------------------
read: which queues              exactly one of
------------------------------  -------------------------------------------------------------------------------------
``subscribe``                   names with commas
``subscribePattern``            a regular expression that matches the whole name
``assign``                      partitions: ``{"orders":[1,2]}``
------------------------------  -------------------------------------------------------------------------------------
read: from where to where       the first that is given counts
------------------------------  -------------------------------------------------------------------------------------
``startingTimestamp``           ms since 1970
``startingOffsetsByTimestamp``  ``{"orders":{"1":ms,"2-4":ms}}``
``startingOffsets``             ``earliest`` (a batch's default), ``latest`` (a stream's), or ids of messages:
                                ``{"orders":{"1":"<id>","2-4":"earliest"}}``, where -2 is earliest and -1 latest
``endingTimestamp``, …          of a batch the end, which is not read itself: the same three, default ``latest``
------------------------------  -------------------------------------------------------------------------------------
read: how
------------------------------  -------------------------------------------------------------------------------------
``includeHeaders``              give the column ``headers`` as well (false)
``failOnDataLoss``              fail if what was to be read is gone (true)
``minPartitions``               about how many tasks at least
``maxRecordsPerPartition``      of a batch: about how many messages a task reads at most
``maxOffsetsPerTrigger``        of a stream: how many messages a micro-batch reads at most
``group``                       of a stream: record progress as offsets of this consumer group
------------------------------  -------------------------------------------------------------------------------------
write
------------------------------  -------------------------------------------------------------------------------------
``queue`` or ``topic``          where all rows go, whatever they say; else their column ``queue`` says it
``ttl``                         seconds that messages live whose row does not say
``run``                         of a batch: doing it again under this name writes the same messages once
``lead``                        seconds by which ids are reserved ahead of the clock (10)
``rate``                        messages a second over all tasks
``create``, ``partitions``      create the queue if it is not there, with so many partitions
==============================  =====================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuey.extras import install_command
from queuey.spark.errors import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

OLDEST = (4, 2)
"""The first PySpark whose streams over sources in Python have limits and an end."""


def register(spark: SparkSession) -> None:
    """Registers the format ``queuey`` in a session. You may call it again.

    ::

        register(spark)
        spark.read.format("queuey").option("subscribe", "orders").load().select("id", "value").show()

    Raises:
        SparkMissing: This is an older PySpark than sources of streams in Python need.
    """
    import pyspark

    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < OLDEST:
        raise SparkMissing(
            f"PySpark {pyspark.__version__} is too old: queues need {'.'.join(map(str, OLDEST))} or later, here and on "
            f"the cluster. Install it: {install_command('spark')}"
        )
    from queuey.spark.data_source import QueueySource

    spark.dataSource.register(QueueySource)

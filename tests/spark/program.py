"""A program that reads queues on a cluster: run as a process of its own, it reports on standard output as JSON.

Its argument is a JSON object: ``master``, ``conf`` of Spark, ``options`` of the store, and ``queue``, which is purged
at the end.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from queuey.spark import open_stores
from queuey.spark.options import store_options
from queuey.spark.session import session
from queuey.storage import bridge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MISTAKES = "-- what follows is about mistakes --"


def main() -> None:
    request = json.loads(sys.argv[1])
    spark = session(master=request["master"], conf=request["conf"], name="program")
    try:
        report = read_explain_and_fail(spark, request["options"], request["queue"])
    finally:
        spark.stop()
        open_stores.close_all()
    json.dump(report, sys.stdout)


def read_explain_and_fail(spark: SparkSession, options: dict[str, str], queue: str) -> dict[str, Any]:
    """Reads a queue, explains the read, and makes two more fail: one when it is planned, one in its tasks.

    For the second failure it purges the queue.
    """
    errors: list[str] = []

    @contextlib.contextmanager
    def failing() -> Iterator[None]:
        try:
            yield
        except PySparkException as error:
            errors.append(str(error))

    def reading(**more: str) -> DataFrame:
        return spark.read.format("queuey").options(**options, **more).load()

    frame = reading(subscribe=queue, minPartitions="2")
    rows = sorted((row.partition, row.id) for row in frame.select("partition", "id").collect())
    jvm: Any = spark.sparkContext._jvm
    explained = jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended")
    print(MISTAKES, file=sys.stderr, flush=True)  # noqa: T201 - marks where Spark begins to log errors
    with failing():
        reading(subscribe="nowhere").count()
    place = store_options(options)
    store = open_stores.opened(place)
    bridge.run(store.catalogue.purge_queue(open_stores.find_queue(store, place, queue)))
    with failing():
        frame.count()
    return {
        "rows": rows,
        "explained": explained,
        "errors": errors,
        "java": jvm.java.lang.System.getProperty("java.home"),
        "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
    }


if __name__ == "__main__":
    main()

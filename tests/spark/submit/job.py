"""A program for a cluster: it reads a queue, copies it, and follows the copy as a stream.

Its argument is a JSON object: ``options`` of the store, ``run``, which names the copying, ``directory`` for a stream,
and ``remote``, the address of a server of Spark Connect, if it is one.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from queuey.spark import register

wanted = json.loads(sys.argv[1])
place, directory = wanted["options"], wanted["directory"]
builder = SparkSession.builder
spark = builder.remote(wanted["remote"]).getOrCreate() if "remote" in wanted else builder.getOrCreate()
register(spark)
orders = spark.read.format("queuey").options(**place, subscribe="orders", minPartitions="4").load()
copying = orders.selectExpr("value", "partition").write.format("queuey").mode("append")
copying.options(**place, queue="copies", run=wanted["run"], lead="2").save()
copies = spark.readStream.format("queuey").options(**place, subscribe="orders", startingOffsets="earliest").load()
writing = copies.select("id").writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
writing.trigger(availableNow=True).start(f"{directory}/rows").awaitTermination()
seen = {
    "read": sorted(row.id for row in orders.select("id").collect()),
    "followed": sorted(row.id for row in spark.read.parquet(f"{directory}/rows").collect()),
}
spark.stop()
print(json.dumps(seen))  # noqa: T201 - what the test reads

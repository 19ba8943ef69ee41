"""The work queue through the pipeline, in one session of Spark: archived, counted, replayed, audited.

A program of its own, so that what Spark prints and leaves behind does not mix with the demo:

    through_spark.py DATA QUEUE REPLAYED RECEIPTS DIRECTORY CHART

prints one JSON document: what it found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chart

from queuey.pipeline.archive.archive_job import archive
from queuey.pipeline.archive.replay import replay
from queuey.pipeline.audit.audit_job import run as audit
from queuey.pipeline.options import ArchiveOptions, AuditOptions, ReplayOptions
from queuey.spark.options import StoreOptions, Subscribe
from queuey.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {"spark.default.parallelism": "2", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}
BUCKET_SECONDS = 1
"""Short, so that what the demo has just sent lies in buckets that are over."""
_CLASS = " + ".join(f"if(mag >= {bound}, 1, 0)" for bound in chart.BOUNDS)
COUNTED = f"""
    SELECT net, hour, class, count(*) AS notices
    FROM (
        SELECT get_json_object(text, '$.net') AS net,
               bigint(floor(bigint(get_json_object(text, '$.time')) / 3600000) * 3600) AS hour,
               {_CLASS} AS class
        FROM (SELECT string(value) AS text, double(get_json_object(string(value), '$.mag')) AS mag FROM messages)
    )
    GROUP BY net, hour, class
"""  # noqa: S608 - of constants


def main(data: str, queue: str, replayed: str, receipts: str, directory: str, drawing: str) -> dict[str, Any]:
    store = StoreOptions((("data", data),))
    place = str(Path(directory) / "archive")
    spark = session(master="local[2,4]", conf={**CONF, "spark.local.dir": directory}, name="demo")
    try:
        kept = archive(
            spark, ArchiveOptions(store=store, selection=Subscribe((queue,)), to=place, seconds=BUCKET_SECONDS), _silent
        )
        hours = count_notices(spark, place)
        Path(drawing).write_text(chart.draw(hours))
        chosen = ReplayOptions(store=store, archive=place, selection=Subscribe((queue,)), into=replayed)
        back = replay(spark, chosen, _silent)
        report = audit(spark, AuditOptions(receipts=(receipts,), store=store, names={queue: replayed}), _silent)
    finally:
        spark.stop()
    files = [path.stat().st_size for path in Path(place).rglob("*.parquet")]
    return {
        "archived": kept.messages,
        "buckets": len(kept.archived),
        "files": len(files),
        "bytes": sum(files),
        "hours": hours,
        "replayed": back.messages,
        "accepted": report.total.accepted,
        "present": report.total.present,
        "sound": report.sound,
    }


def count_notices(spark: SparkSession, place: str) -> list[chart.Hour]:
    spark.read.parquet(f"{place}/messages").createOrReplaceTempView("messages")
    return [chart.Hour(*row) for row in spark.sql(COUNTED).collect()]


def _silent(text: str) -> None:
    """Drops a report of progress: the demo prints its own."""


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

"""A driver to be killed: it streams Parquet files into a queue, one per micro-batch, until all are written.

Run as ``python -m tests.spark.faults.sending PLACE POINT BATCH OPTION=VALUE…``. It dies at the point in that batch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from queuey.spark.session import session
from tests.spark.conftest import INTERPRETED
from tests.spark.faults.queries import until_done
from tests.spark.mortal import Deaths, make_mortal_source


def main(place: Path, point: str, batch: str, options: dict[str, str]) -> None:
    conf = INTERPRETED | {"spark.local.dir": str(place / "local"), "spark.driver.memory": "512m"}
    spark = session(master="local[2,4]", conf=conf)
    deaths = Deaths(place / "deaths", point=point, batch=batch, driver=True)
    spark.dataSource.register(make_mortal_source("mortal", deaths))
    rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).parquet(str(place / "given"))
    writing = rows.writeStream.format("mortal").options(**options)
    writing = writing.option("checkpointLocation", str(place / "checkpoint"))
    until_done(writing.trigger(availableNow=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], dict(option.split("=", 1) for option in sys.argv[4:]))

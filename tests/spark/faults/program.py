"""A driver to be killed: it streams a queue into Parquet files, or Parquet files into a queue, one per micro-batch.

Run as ``python -m tests.spark.faults.program PLACE read|write OPTIONS``. The options, as JSON, include the faults.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from queuey.spark.session import session
from tests.spark.conftest import INTERPRETED
from tests.spark.faults.faulty import FaultySource


def main(place: Path, way: str, options: dict[str, str]) -> None:
    """Runs a query to its end; restarts it if Spark gave up waiting for a Python process.

    Spark waits ten seconds for the start of such a process, without a setting; on a busy machine that is too short.
    """
    conf = INTERPRETED | {"spark.local.dir": str(place / "local"), "spark.driver.memory": "512m"}
    spark = session(master="local[2,4]", conf=conf)
    spark.dataSource.register(FaultySource)
    if way == "read":
        rows = spark.readStream.format("faulty").options(**options).load()
        writing = rows.writeStream.format("parquet").option("path", str(place / "rows"))
    else:
        rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).parquet(str(place / "given"))
        writing = rows.writeStream.format("faulty").options(**options)
    writing = writing.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    while True:
        try:
            writing.start().awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))

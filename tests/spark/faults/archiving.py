"""A driver to be killed: it streams a queue into Parquet files until all messages are written.

Run as ``python -m tests.spark.faults.archiving PLACE OPTION=VALUE…``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from queuey.spark.session import session
from tests.spark.faults.failing import FailingSource
from tests.spark.faults.queries import until_done


def main(place: Path, options: dict[str, str]) -> None:
    spark = session(master="local[2,4]", conf={"spark.local.dir": str(place / "local")})
    spark.dataSource.register(FailingSource)
    frame = spark.readStream.format("failing").options(**options, faults=str(place / "faults")).load()
    writing = frame.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
    until_done(writing.trigger(availableNow=True).option("path", str(place / "rows")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(option.split("=", 1) for option in sys.argv[2:]))

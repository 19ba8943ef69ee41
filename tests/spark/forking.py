"""The process of which Spark forks its Python workers here: it has imported what each of them would import by itself.

That is half a second of processor time, and a test has dozens of workers. ``spark.python.daemon.module`` names it.
"""

from __future__ import annotations

import pyarrow as pa  # noqa: F401 - for the workers
import pyspark.worker  # noqa: F401 - likewise
from pyspark import daemon

import queuey.spark.data_source
import queuey.spark.sink.spark_writer
import queuey.storage.sqlite  # noqa: F401 - likewise

if __name__ == "__main__":
    daemon.manager()

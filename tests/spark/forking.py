"""The process from which Spark forks its Python workers in tests: it has imported the modules that each would import.

This saves half a second of processor time per worker, and a test has dozens. ``spark.python.daemon.module`` names it.
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

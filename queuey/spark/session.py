"""Spark sessions for commands and tests: by default local, bound to the loopback address, and quiet."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from queuey.model.extras import install_command
from queuey.spark import java, register
from queuey.spark.errors import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[*,4]"
"""All cores of this machine, with up to four attempts of a task."""
_LOOPBACK = "127.0.0.1"
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
}
_WITHOUT_PANDAS = {"spark.sql.execution.pythonUDF.arrow.enabled": "false"}
"""Disables Arrow for Python functions if pandas, which PySpark requires for it, is missing. Spark would fall back
anyway, but with a warning."""
_LOCAL_CONF = {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
"""Settings of sessions with executors on this machine."""


def session(*, master: str = MASTER, conf: Mapping[str, str] | None = None, name: str = "queuey") -> SparkSession:
    """Starts Spark, unless this process has a session already, and registers the format ``queuey``.

    ::

        from queuey.spark.session import session

        spark = session()
        spark.read.format("queuey").option("subscribe", "orders").load().select("id", "value").show()

    Sets ``JAVA_HOME`` of this process for Spark's launcher. For a local master it also sets the Python of the workers,
    unless that is set.

    Args:
        master: The master of the cluster: ``local[2,4]``, ``spark://host:7077``, ….
        conf: Further Spark settings, which override the defaults.
        name: Name of the Spark application.

    Raises:
        SparkMissing: PySpark or Java is missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing(f"PySpark is not installed. Install it: {install_command('spark')}") from error
    os.environ["JAVA_HOME"] = str(java.find_java_home())
    if is_local(master):
        # Also prevents Spark from resolving this machine's name.
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    usual = _CONF | (_LOCAL_CONF if is_local(master) else {}) | ({} if find_spec("pandas") else _WITHOUT_PANDAS)
    for key, value in (usual | dict(conf or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def is_local(master: str) -> bool:
    return master.startswith("local")

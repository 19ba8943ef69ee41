"""Spark for a test with executors in processes of their own: inside the driver's cluster, or standalone servers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from tests.servers.processes import run_to_end

PATIENCE = 1500
"""Timeout in seconds for a program's end or a server's start: four JVMs share a machine that may be busy."""


@dataclass(frozen=True)
class Run:
    """A program that has ended.

    Attributes:
        report: Its standard output.
        stderr: Its standard error.
    """

    report: dict[str, Any]
    stderr: str


def run_program(wanted: Mapping[str, Any], environ: Mapping[str, str]) -> Run:
    command = [sys.executable, "-m", "tests.spark.program", json.dumps(wanted)]
    root = Path(__file__).parents[2]
    done = run_to_end(command, PATIENCE, env=dict(environ), cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    return Run(json.loads(done.stdout), done.stderr)


def environment(directory: Path, **more: str) -> dict[str, str]:
    """Returns this environment without settings of Queuey, and with a home of Spark in a directory.

    Executors write files below the home of Spark, which must not be the installation of PySpark.
    """
    home = directory / "spark-home"
    home.mkdir()
    for entry in Path(pyspark.__path__[0]).iterdir():
        (home / entry.name).symlink_to(entry)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("QUEUEY_")}
    return kept | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", **more}


@contextlib.contextmanager
def standalone(directory: Path, environ: Mapping[str, str], *, workers: int = 1) -> Iterator[str]:
    start = f"{environ['SPARK_HOME']}/bin/spark-class"
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with contextlib.ExitStack() as running:
        read = running.enter_context(served([start, *master], environ, directory / "master.log"))
        url = read(r"(spark://127\.0\.0\.1:\d+)")
        worker = [start, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
        worker += ["--cores", "2", "--memory", "1g", "--work-dir", str(directory / "work"), url]
        for number in range(workers):
            read = running.enter_context(served(worker, environ, directory / f"worker{number}.log"))
            read(r"(Successfully registered with master)")
        yield url


@contextlib.contextmanager
def served(command: list[str], environ: Mapping[str, str], log: Path, *, cwd: Path | None = None) -> Iterator[Any]:
    """Starts a Spark server; yields a function that waits until its log matches a pattern."""
    settings = log.with_suffix(".properties")
    settings.write_text(_LOG_SETTINGS)
    options = f"-Dlog4j2.configurationFile={settings.as_uri()}"
    # The first name is for Spark's own servers, the other for submitted programs.
    memory = {"SPARK_DAEMON_MEMORY": "256m"}
    env = {**memory, **environ, "SPARK_DAEMON_JAVA_OPTS": options, "SPARK_SUBMIT_OPTS": options}
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=cwd) as server,
    ):

        def read(pattern: str) -> str:
            until = time.monotonic() + PATIENCE
            while not (found := re.search(pattern, log.read_text())):
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.1)
            return found[1]

        try:
            yield read
        finally:
            server.terminate()


_LOG_SETTINGS = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c{1}: %m%n%ex
"""

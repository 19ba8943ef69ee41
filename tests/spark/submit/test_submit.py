"""Programs on a cluster of two workers: with a packed environment that has the wheel, and through Spark Connect."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from queuey.spark.sink import write_reports
from queuey.storage import bridge
from tests.backends import APP
from tests.servers import keyspaces
from tests.servers.processes import run_well
from tests.spark import clusters
from tests.spark.conftest import DELAYS, INTERPRETED, have_short_delays
from tests.spark.kept import Kept, open_patiently

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
JOB = Path(__file__).with_name("job.py")
COUNT = 300
CONF = INTERPRETED | {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.ui.enabled": "false",
}


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster, with a queue to read and another one to write.

    Attributes:
        home: The directory that submits programs, with the unpacked environment and its archive.
        place: Options of the store; the password by name.
        sent: The ids of the messages.
        environ: The environment of all processes.
    """

    master: str
    home: Path
    place: dict[str, str]
    sent: list[str]
    kept: Kept
    environ: dict[str, str]
    secret: str

    def options(self) -> list[str]:
        conf = [text for name, value in CONF.items() for text in ("--conf", f"{name}={value}")]
        return [f"{self.environ['SPARK_HOME']}/bin/spark-submit", "--master", self.master, *conf]

    def job(self, run: str, **more: str) -> str:
        return json.dumps({"options": self.place, "run": run, "directory": str(self.home / run), **more})

    def check(self, printed: str, run: str) -> None:
        seen = json.loads(printed.splitlines()[-1])
        assert seen == {"read": self.sent, "followed": self.sent}
        assert write_reports.report(self.kept.store, APP, run) is not None


def run(command: list[str], home: Path, environ: Mapping[str, str]) -> str:
    return run_well(command, clusters.PATIENCE, cwd=home, env=dict(environ))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a wheel, an environment with it, and the environment's archive."""
    home = tmp_path_factory.mktemp("home")
    pip = [str(home / "environment/bin/python"), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    connect = [str(one).partition(";")[0] for one in map(Requirement, requires("pyspark") or ()) if _of_connect(one)]
    for command in (
        [sys.executable, "-m", "venv", "environment"],
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(home), str(ROOT)],
        [*pip, "cassandra-driver", "numpy", "pyarrow", *connect],
    ):
        run(command, home, os.environ)
    [wheel] = home.glob("queuey_store-*.whl")
    run([*pip, str(wheel)], home, os.environ)
    run(["tar", "-czf", "environment.tar.gz", "-C", "environment", "."], home, os.environ)
    return home


def _of_connect(one: Requirement) -> bool:
    return one.marker is not None and one.marker.evaluate({"extra": "connect"})


@pytest.fixture(scope="module")
def cluster(contract_keyspace: str, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers with only a plain Python, and a Cassandra store."""
    directory = tmp_path_factory.mktemp("cluster")
    keyspaces.empty(contract_keyspace)
    have_short_delays(contract_keyspace)
    options = {"store": contract_keyspace, **DELAYS}
    secret = f"hunter-{uuid.uuid4().hex}"
    (directory / "password").write_text(secret)
    credentials = {"cassandra_user": "ann", "cassandra_password": f"file:{directory / 'password'}"}
    environ = clusters.environment(directory, PYSPARK_PYTHON="./environment/bin/python")
    environ.pop("PYTHONPATH", None)
    with (
        contextlib.closing(open_patiently(options)) as store,
        clusters.standalone(directory, environ, workers=2) as master,
    ):
        bridge.run(store.applications.create_application(APP))
        kept = Kept(store, options)
        kept.queue("copies", partitions=2)
        sent = sorted(one.id for one in kept.fill(kept.queue("orders", partitions=2), COUNT))
        yield Cluster(master, home, options | credentials, sent, kept, environ, secret)


def test_a_packed_environment(cluster: Cluster) -> None:
    """Workers unpack an archive with all that tasks need, on both machines, and no log has the password."""
    command = [*cluster.options(), "--archives", "environment.tar.gz#environment", str(JOB), cluster.job("packed")]
    cluster.check(run(command, cluster.home, cluster.environ), "packed")
    work = Path(cluster.environ["SPARK_HOME"]).parent / "work"
    executors = [path for path in work.glob("app-*/*") if (path / "environment/bin/python").exists()]
    assert len(executors) == 2
    logs = [path.read_text() for one in executors for path in (one / "stdout", one / "stderr")]
    assert not any(cluster.secret in text for text in logs)


def test_through_connect(cluster: Cluster) -> None:
    """A program without Java reads, writes and follows queues through Spark Connect."""
    server = [
        *cluster.options(),
        "--conf",
        "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf",
        "spark.connect.grpc.binding.port=0",
    ]
    server += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    libraries = Path(cluster.environ["SPARK_HOME"]) / "python" / "lib"
    client = {"PYTHONPATH": os.pathsep.join(str(path) for path in libraries.glob("*.zip")), "PATH": os.environ["PATH"]}
    # Each session of the server plans in a directory of its own, so a relative path would lead nowhere.
    python = str(cluster.home / "environment/bin/python")
    environ = cluster.environ | {"SPARK_DAEMON_MEMORY": "512m", "PYSPARK_PYTHON": python}
    with clusters.served(server, environ, cluster.home / "connect.log", cwd=cluster.home) as read:
        port = read(r"Spark Connect server started at: 127\.0\.0\.1:(\d+)")
        job = cluster.job("connected", remote=f"sc://127.0.0.1:{port}")
        cluster.check(run(["environment/bin/python", str(JOB), job], cluster.home, client), "connected")

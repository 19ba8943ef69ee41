"""One Spark session for the tests of this directory, and the stores that it reads and writes."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuey.spark import open_stores
from queuey.storage import Store, bridge
from tests.backends import APP, Clock, prepare_sqlite
from tests.spark.kept import Kept, keep, open_patiently

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Makes Spark interpret its plans: for some hundred rows, compiling a program for each costs more than it saves."""
CONF = INTERPRETED | {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.python.daemon.module": "tests.spark.forking",
    "spark.python.worker.memory": "256m",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of test sessions: small, as are the data. To replan a query after each of its stages costs a tenth of all;
the demo and the programs of the pages do so."""
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""Makes Java compile quickly instead of well, which halves the processor time of a short process. The code cache has
room for everything: with the default of 48 MB Java would search for code to evict all the time."""
DELAYS = {"consistency.weak": "delay=0.8", "consistency.very_strong": "write=QUORUM"}
"""Cassandra settings with which messages become readable soon."""


def have_short_delays(url: str) -> None:
    """Sets the timing of a keyspace so that messages become readable soon.

    The allowed difference of clocks is large because a busy machine answers late, and so its clock is hard to measure.
    """
    from queuey.storage.cassandra.cluster.timing import KeyspaceTiming, LevelTiming  # noqa: PLC0415 - needs the driver
    from tests.servers import keyspaces  # noqa: PLC0415 - needs the driver

    levels = {"strong": LevelTiming(1.2, 0.1, 1.9), "very_strong": LevelTiming(3.0, 0.1, 3.7)}
    keyspaces.set_timing(url, KeyspaceTiming(0.6, 0.1, levels))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignores warnings about sockets to the JVM that py4j leaves to the garbage collector."""
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore:.*ResourceWarning:pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps settings of the person who runs the tests out of them."""
    forget_settings(monkeypatch)


def forget_settings(patch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("QUEUEY_")]:
        patch.delenv(name)


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests here, with two cores; it tries a task four times."""
    from queuey.spark.session import session  # noqa: PLC0415 - needs PySpark

    directory, interrupts = tmp_path_factory.mktemp("spark"), signal.getsignal(signal.SIGINT)
    places = {"spark.local.dir": str(directory / "local"), "spark.sql.warehouse.dir": str(directory / "warehouse")}
    with pytest.MonkeyPatch.context() as patch:
        forget_settings(patch)
        patch.setenv("JDK_JAVA_OPTIONS", QUICK)
        started = session(master="local[2,4]", conf=CONF | places, name="tests")
    yield started
    end(started)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupts)


def end(spark: SparkSession) -> None:
    """Stops a session and its JVM, so that none idles while the rest of the suite runs."""
    from pyspark import SparkContext  # noqa: PLC0415 - needs PySpark

    gateway = SparkContext._gateway
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        spark.stop()
        assert gateway is not None
        gateway.shutdown()
        process = gateway.proc
        process.stdin.close()
        process.wait(60)
        SparkContext._gateway = SparkContext._jvm = None
        gc.collect()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Kept]:
    """A store on SQLite with one application."""
    with keep(tmp_path) as kept:
        yield kept


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    """A store on SQLite with one application, on a clock that the test moves."""
    with contextlib.closing(prepare_sqlite(tmp_path / "timed").open(clock)) as store:
        bridge.run(store.applications.create_application(APP))
        yield store


@pytest.fixture
def clustered(contract_keyspace: str) -> Iterator[Kept]:
    """A Cassandra store with one application; reads stay behind the clock by 1.9 s."""
    from tests.servers import keyspaces  # noqa: PLC0415 - needs the driver

    keyspaces.empty(contract_keyspace)
    have_short_delays(contract_keyspace)
    options = {"store": contract_keyspace, **DELAYS}
    with contextlib.closing(open_patiently(options)) as store:
        bridge.run(store.applications.create_application(APP))
        yield Kept(store, options)
        open_stores.close_all()

"""The demo's last part: the pipeline on Spark, where that is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import chart
from service import DemoFailed, Service

from queuey.model.extras import MODULES, install_command

HERE = Path(__file__).parent
CHART = "earthquakes.svg"
"""File of the chart, in the working directory."""
MISSING = (
    "Skipped: PySpark is not installed. With it (a download of 456 MB) the feed is archived, counted, replayed and "
    f"audited here: make demo SPARK=1, or first {install_command('spark')}"
)
SECONDS = 900.0
"""Long: a busy machine takes minutes to start Spark."""
SHOWN = 5
"""Networks in the table."""
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Has Java compile quickly instead of well, which for so short a life takes about half the processor time."""


def is_installed() -> bool:
    return all(find_spec(name) is not None for name in MODULES["spark"])


def chart_path() -> Path:
    """Returns the path of the chart: the environment variable ``DEMO_CHART``, or else ``CHART``."""
    return Path(os.environ.get("DEMO_CHART") or CHART).absolute()


def run(service: Service, queue: str, replayed: str, receipts: Path) -> dict[str, Any]:
    """Runs ``through_spark.py`` in a process group of its own, which is killed at the end; returns what it found.

    Raises:
        DemoFailed: Its exit code is not 0, or it took longer than ``SECONDS``.
    """
    directory = service.directory / "spark"
    temporary = directory / "tmp"
    temporary.mkdir(parents=True)
    chart_path().parent.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEY_")}
    environment |= {"TMPDIR": str(temporary), "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={temporary} {QUICK}"}
    command = [sys.executable, str(HERE / "through_spark.py"), str(service.data), queue, replayed, str(receipts)]
    log = directory / "log.txt"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, str(directory), str(chart_path())],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        out, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise DemoFailed(f"the pipeline did not end within {SECONDS:.0f} s:\n{log.read_text()}") from error
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode != 0:
        raise DemoFailed(f"the pipeline ended with {process.returncode}:\n{log.read_text()}")
    results: dict[str, Any] = json.loads(out)
    return results


def rank_networks(hours: list[list[Any]]) -> list[tuple[Any, ...]]:
    """Returns the ``SHOWN`` networks with the most notices: name, number of notices, and number in each class."""
    counts: Counter[tuple[str, int]] = Counter()
    for network, _, magnitude, count in hours:
        counts[network, magnitude] += count
    totals = Counter({network: 0 for network, _ in counts})
    for (network, _), count in counts.items():
        totals[network] += count
    classes = range(len(chart.CLASSES))
    return [
        (network, total, *(counts[network, number] for number in classes))
        for network, total in totals.most_common(SHOWN)
    ]

"""A short run, which keeps the long ones working."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.processes import ending
from tests.waiting import PATIENCE_SECONDS

STATUS_LINES, SECONDS = 2, 60


@pytest.mark.slow
def test_a_minute_of_everything_that_ctrl_c_ends(tmp_path: Path) -> None:
    """An interrupted run makes all checks, finds no violation, and writes its report."""
    command = [sys.executable, "-m", "tests.soak", "--minutes", "60", "--nodes", "1", "--reports", str(tmp_path)]
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE, text=True), patience=300) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if len([shown for shown in lines if " s: " in shown]) == STATUS_LINES and " s: " in line:
                process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0, "".join(lines)
    (path,) = tmp_path.glob("*/report.json")
    report = json.loads(path.read_text("utf-8"))
    assert report["violations"] == []
    assert SECONDS <= report["seconds"] < 10 * SECONDS
    assert sum(report["faults"].values()) > 1
    assert len(report["consumers"]) == 8
    for name, consumer in report["consumers"].items():
        assert consumer["seen"] >= report["acknowledged"][name.partition(",")[0]] > 0
    assert {"sqlite lasting service", "cassandra killed qdo worker"} < report["processes"].keys()

"""What claims run in: no error of their work is lost."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import cast

import pytest

from queuey.service.claims.runtime import ThreadRuntime
from queuey.storage import Store

AT_THE_END = """
import atexit, logging
from queuey.service.claims.runtime import ThreadRuntime
logging.basicConfig(level="DEBUG")
runtime = ThreadRuntime(None)
runtime.submit(lambda: None)
atexit.register(lambda: runtime.submit(print))
"""


@pytest.mark.parametrize("later", [False, True])
def test_an_error_is_logged(caplog: pytest.LogCaptureFixture, later: bool) -> None:  # noqa: FBT001
    """Whatever error work ends with is written to the log, at once or from a timer."""
    runtime = ThreadRuntime(cast("Store", None))
    done = threading.Event()

    def work() -> None:
        raise RuntimeError("a mistake")

    with caplog.at_level(logging.ERROR):
        if later:
            runtime.later(0.0, work)
        else:
            runtime.submit(work)
        while not caplog.records:
            done.wait(0.01)
    [record] = caplog.records
    assert record.exc_info is not None
    assert "a mistake" in str(record.exc_info[1])


def test_work_at_the_end_of_the_process_is_dropped() -> None:
    """When the process ends, work that comes then is not done and is no error."""
    ended = subprocess.run([sys.executable, "-c", AT_THE_END], check=True, capture_output=True, text=True, timeout=300)
    assert (ended.stdout, ended.stderr) == ("", "")

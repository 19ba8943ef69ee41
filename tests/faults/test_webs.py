"""The processes of a run with faults: waiting for one that cannot start ends at once."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.webs import OneWorker


def test_a_worker_of_a_service_that_has_ended() -> None:
    """Waiting for a worker of an ended service fails at once, with the service's exit code and output."""
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait(60)
    service: Any = SimpleNamespace(served=SimpleNamespace(process=process), output="out of memory")
    with pytest.raises(AssertionError, match="the service ended with 3:\nout of memory"):
        OneWorker(service, 1).start()

"""Programs that tests start can be interrupted, and end with their test."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

import pytest

from tests.servers.processes import ending, restore_interrupts

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
ASLEEP = "import time; print('asleep', flush=True); time.sleep(600)"


def test_interrupts_are_heard_where_they_were_ignored() -> None:
    """A program started from a background suite, whose shell ignores SIGINT, still ends by SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        restore_interrupts()
        command = [sys.executable, "-c", ASLEEP]
        with ending(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == b"asleep\n"
            for _ in range(120):  # a signal just before the sleep is handled after it
                program.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    program.wait(0.5)
                    break
            assert program.returncode == -signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("prelude", "patience", "end"),
    [("", 60.0, signal.SIGTERM), (DEAF, 0.1, signal.SIGKILL)],
    ids=["ends when told", "does not"],
)
def test_a_failed_test_leaves_no_program(prelude: str, patience: float, end: signal.Signals) -> None:
    """However the block is left, the program is gone, even one that ignores SIGTERM."""
    program = subprocess.Popen([sys.executable, "-c", prelude + ASLEEP], stdout=subprocess.PIPE)
    assert program.stdout is not None
    with pytest.raises(AssertionError), ending(program, patience):
        assert program.stdout.readline() == b""
    assert program.returncode == -end

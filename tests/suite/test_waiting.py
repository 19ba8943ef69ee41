"""Waits for a condition end: with it, at their limit, or with the process that was to bring it about."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.waiting import until, until_async


@pytest.mark.needs_programs
def test_a_wait_is_over_when_its_process_has_ended() -> None:
    """A wait for a process fails as soon as the process has ended, and reports the exit code."""
    began = time.monotonic()
    with (
        subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process,
        pytest.raises(AssertionError, match="ended with 3"),
    ):
        until(lambda: False, 300, process=process)
    assert time.monotonic() - began < 200


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_wait_has_a_limit(anyio_backend: str) -> None:
    """A condition that stays false fails at the limit; one that becomes true ends the wait; coroutines are awaited."""
    with pytest.raises(AssertionError, match=r"after 0\.02 s"):
        until(lambda: False, 0.02)
    with pytest.raises(AssertionError, match=r"after 0\.02 s"):
        await until_async(lambda: False, 0.02)
    answers = iter([False, False, True])

    async def answer() -> bool:
        return next(answers)

    await until_async(answer)
    assert list(answers) == []

"""Tasks of a program that workers import. The environment names their queue."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from qdo import Jobs, delivery, set_state
from tests.qdo.worker.hands import note
from tests.waiting import until

jobs = Jobs(os.environ.get("ERRANDS_QUEUE", "errands"))
slow_jobs = Jobs(os.environ.get("ERRANDS_QUEUE", "errands"))


@jobs.task
def work(text: str) -> str:
    """Takes a moment, records the text, and returns it."""
    time.sleep(0.05)
    note(text)
    return text


@jobs.task(retries=0)
def climb(gate: str, end: str = "") -> None:
    """Reports its progress, waits at a gate, and fails if asked to."""
    for step in range(3):
        set_state({"step": step})
    until(Path(gate).exists)
    set_state({"step": "last"})
    if end:
        raise ValueError(end)


@jobs.task(retries=0)
async def climb_async(gate: str, end: str = "") -> None:
    await asyncio.to_thread(climb, gate, end)


@jobs.task(retries=1)
def resume() -> None:
    """Fails the first time after it has reported its progress; then records the progress that it is given."""
    note(f"began at {delivery().state}")
    if delivery().attempt == 1:
        set_state({"step": 2})
        raise ValueError("no rope")


@jobs.task
def double(text: str) -> str | None:
    """Returns the text twice, or None if it is empty."""
    return 2 * text or None


@jobs.task
def image() -> object:
    """Returns a value that JSON cannot hold."""
    return object()


@jobs.task
def heed(text: str) -> None:
    """Waits until it is asked to stop, and then fails."""
    note(f"began {text}")
    until(lambda: delivery().cancelled)
    note(f"stopped {text}")
    raise ValueError(text)


@jobs.task
async def heed_async(text: str) -> None:
    """Waits until it is asked to stop, for a minute at most; does not fail then."""
    note(f"began {text}")
    for _ in range(6000):
        if delivery().cancelled:
            break
        await asyncio.sleep(0.01)
    note(f"stopped {text}")


@slow_jobs.task(retries=0)
def chatter() -> None:
    while True:
        set_state({"time": time.time()})
        time.sleep(0.01)

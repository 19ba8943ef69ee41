"""Handlers that do nothing, so that a run measures only the worker, and a gate that starts all workers at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from queuey.client import Message

GATE = "BENCH_GATE"
"""Environment variable with the path of a file; workers join their group once the file exists."""


@asynccontextmanager
async def gate() -> AsyncIterator[None]:
    """Waits until the gate's file exists, so that all workers join at the same time, however long their start takes."""
    path = Path(os.environ[GATE])
    while not path.exists():  # noqa: ASYNC110 - another process creates it
        await asyncio.sleep(0.002)
    yield None


def plain(message: Message, context: object) -> None:
    """Does nothing with a message."""


async def awaited(message: Message, context: object) -> None:
    """Does nothing with a message, on the worker's event loop."""

"""Handlers that do nothing, so that what a worker costs is all that is left, and a gate before them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from queuey.client import Message

GATE = "BENCH_GATE"
"""Variable with the path of a file: workers join their group when it is there."""


@asynccontextmanager
async def gate() -> AsyncIterator[None]:
    """Waits until the gate is open, so that all workers join at the same time, whatever their start took."""
    path = Path(os.environ[GATE])
    while not path.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.002)
    yield None


def plain(message: Message, context: object) -> None:
    """Handles a message."""


async def awaited(message: Message, context: object) -> None:
    """Handles a message in the worker's loop."""

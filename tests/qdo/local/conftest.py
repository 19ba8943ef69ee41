"""Fixtures of local coordination: a file of its own for each test, and members in it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from qdo.coordination import Member, Session
from qdo.coordination.opening import open_coordinator
from tests.qdo.contract.events import Heard

Join = Callable[..., Awaitable[tuple[Session, Heard]]]
MIDDLING = 6.0
"""Seconds of a session whose end a test can wait for, and that a short pause of the machine does not end."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is to be; there is none yet."""
    return tmp_path / "state" / "coordination.sqlite3"


@pytest.fixture
async def join(path: Path) -> AsyncIterator[Join]:
    """Has members join, each through a coordinator of its own."""
    async with contextlib.AsyncExitStack() as opened:

        async def join(name: str, *, session_timeout: float = 20.0) -> tuple[Session, Heard]:
            coordinator = open_coordinator(f"local://{path}", "group", session_timeout=session_timeout)
            opened.push_async_callback(coordinator.close)
            await coordinator.open()
            heard = Heard()
            return await coordinator.join(Member(name), heard), heard

        yield join

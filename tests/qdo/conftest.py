"""Tests of Qdo and their fixtures may be coroutines: anyio runs them, on asyncio."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Qdo runs on asyncio only."""
    return "asyncio"

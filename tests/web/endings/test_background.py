"""Background tasks of a service end with it: awaited, in order, and other services are not delayed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from queuey.app.asgi import Application
from tests.web.gateway_calls import TEST_TIMEOUT


def test_a_service_that_ends_soon_after_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Under a server of another kind too, nothing goes on in a loop that has ended, whenever the end comes."""
    monkeypatch.setenv("QUEUEY_DATA", str(tmp_path))

    async def live(turns: int) -> list[str]:
        logged: list[str] = []

        async def receive() -> dict[str, str]:
            if logged:
                for _ in range(turns):
                    await asyncio.sleep(0.001)
            return {"type": "lifespan.shutdown" if logged else "lifespan.startup"}

        async def send(message: dict[str, Any]) -> None:
            logged.append(message["type"])

        await asyncio.wait_for(Application()({"type": "lifespan"}, receive, send), TEST_TIMEOUT)
        return logged

    with caplog.at_level(logging.WARNING):
        for turns in (0, 3, 10):
            assert asyncio.run(live(turns)) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert not caplog.records

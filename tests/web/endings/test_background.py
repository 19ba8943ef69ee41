"""Background tasks of a service end with it: awaited, in order, and other services are not delayed."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from queuey.service import Service
from queuey.service import moves as module
from queuey.service.moves.records import KIND, decode
from queuey.storage import Store, bridge
from queuey.web.asgi import Application
from queuey.web.gateway.asgi import Gateway
from queuey.web.parts import App
from tests.replacing import replace_in
from tests.web.caller import Caller
from tests.web.gateway_calls import TEST_TIMEOUT, Request, make_runner, until

MESSAGES = 1500


def test_a_move_is_handed_back(app: App, owner: Caller, store: Store) -> None:
    """The end of a service waits until the record of a move names no process: others go on at once."""
    for name in ("from", "to"):
        owner.create(name)
    for _ in range(MESSAGES // 50):
        owner.send_json("POST", "from", {"messages": [{"body": "x"}] * 50})
    service: Service = app.service

    async def work(gateway: Gateway) -> None:
        both = json.dumps({"from": "from", "to": "to"}).encode()
        moves = Request("POST", "/v1/queuey/_moves", both, headers=[("content-type", "application/json")])
        assert (await moves.to(gateway)).status == 202
        await until(lambda: service.moves.statistics()["moves_messages_total"] > 0)
        await asyncio.wait_for(service.end(TEST_TIMEOUT), TEST_TIMEOUT)

    with replace_in(module, module.REST_RATIO, TEST_TIMEOUT), replace_in(module, module.MAX_REST, TEST_TIMEOUT):
        make_runner(app)(work)
    [record] = bridge.run(store.records.records(KIND, "queuey"))
    assert bridge.run(store.records.due_records(KIND, store.claim_logs.claim_time()))
    progress = decode(record.value).progress
    assert (progress.state, progress.runner) == ("running", 0)
    assert 0 < progress.moved < MESSAGES


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

"""Early messages over HTTP: in pages, long polls, and streams."""

from __future__ import annotations

from typing import Any

import pytest

from queuey.ids import parse_position
from queuey.service.streams import Cursor
from queuey.storage import Store, bridge
from queuey.web.gateway.asgi import Gateway
from queuey.web.parts import App
from tests.contract.samples import new_message
from tests.web.caller import Caller
from tests.web.gateway.test_long_polls import begin, poll, waiting
from tests.web.gateway_calls import Run, make_runner, until
from tests.web.reads.test_streams import Event, Reader, reading

HOUR = 3600.0


@pytest.fixture
def run(app: App) -> Run:
    return make_runner(app, waiters=50)


@pytest.fixture
def queue(owner: Caller) -> str:
    """A queue whose readers stay an hour behind the clock."""
    return owner.create("q", partitions=2, read_delay=HOUR)


def shown(page: dict[str, Any]) -> list[tuple[str, bool | None]]:
    return [(message["body"], message.get("early")) for message in page["messages"]]


@pytest.mark.parametrize("truth", ["1", "true", "yes"])
def test_a_page(owner: Caller, queue: str, truth: str) -> None:
    """Early messages are marked; the cursor stays at the horizon, and from there they come again."""
    owner.post(queue, "a", X_Partition="1")
    owner.post(queue, "b", X_Partition="1")
    page = owner.get(queue, early=truth).json
    assert shown(page) == [("a", True), ("b", True)]
    assert page["cursor"] == f"1:{page['horizon']}"
    assert parse_position(page["horizon"]) < parse_position(page["messages"][0]["message_id"])
    assert "cursor_safe" not in page
    assert shown(owner.get(queue, since=page["cursor"], early=1).json) == [("a", True), ("b", True)]
    for otherwise in ({}, {"early": "0"}, {"early": "false"}, {"early": ""}):
        assert shown(owner.get(queue, **otherwise).json) == []


def test_several_queues(owner: Caller, queue: str) -> None:
    """Each says for itself whether it is read early."""
    owner.post(queue, "a", X_Partition="1")
    body = {"queues": [{"queue_name": queue, "early": True}, {"queue_name": queue}]}
    first, second = owner.send_json("POST", "_read", body).json["queues"]
    assert (shown(first), shown(second)) == ([("a", True)], [])


@pytest.mark.parametrize("how", [{"order": "descending"}, {"delay": "0"}])
def test_what_cannot_be_early(owner: Caller, queue: str, how: dict[str, str]) -> None:
    """Early messages follow the page below the horizon, which others do not have."""
    reply = owner.get(queue, early=1, **how)
    assert (reply.status, reply.json["error_msg"].keys()) == (400, {"early"})


def test_a_long_poll(owner: Caller, queue: str, run: Run, store: Store) -> None:
    """A poll is answered by stored messages, not by early ones that it has already received."""
    first = owner.post(queue, "a", X_Partition="1")["key"]
    row = bridge.run(store.catalogue.queue("queuey", queue))

    async def work(gateway: Gateway) -> bytes:
        task = begin(gateway, poll(query=f"wait=20&early=1:{first}"))
        await waiting(gateway, 1)
        await store.messages.append(row, [new_message("b")])
        return (await task).body

    assert b'"body":"b","early":true' in run(work)
    at_once = owner.get(queue, early=1, wait=20).json
    assert shown(at_once) == [("a", True), ("b", True)]


@pytest.mark.parametrize("path", ["q", "_stream"])
def test_a_stream(owner: Caller, queue: str, run: Run, store: Store, path: str) -> None:
    """What is stored comes at once, marked; its event does not move the place where a reader goes on."""
    row = bridge.run(store.catalogue.queue("queuey", queue))
    owner.post(queue, "a", X_Partition="1")

    async def work(gateway: Gateway) -> list[Event]:
        async with reading(gateway, Reader(path, "early=1")) as reader:
            await until(lambda: len(reader.bodies) == 1)
            await store.messages.append(row, [new_message("b", partition=2)])
            await until(lambda: len(reader.bodies) == 2)
        # A reader that leaves during an attempt may get a last "bye".
        events = [event for event in reader.events if event.kind == "message" and event.data]
        async with reading(gateway, Reader(path, "early=1", last=events[-1].id)) as again:
            await until(lambda: len(again.bodies) == 2)
        async with reading(gateway, Reader(path, last=events[-1].id)) as later:
            assert later.bodies == []
        return events

    for event in run(work):
        assert event.data["early"] is True
        assert event.data.get("queue_name") == (None if path == "q" else "q")
        cursor = Cursor.parse(event.id, "q" if path == "q" else None)
        assert max(cursor.base, *cursor.marks.values(), cursor.base) < parse_position(event.data["message_id"])

"""Reading several queues in one request."""

from __future__ import annotations

from typing import Any

import pytest

from queuey.app.service import App
from queuey.messages.streams import Cursor
from queuey.model.ids import parse_position
from queuey.storage import Store, bridge
from queuey.web.gateway import Gateway
from tests.contract.samples import new_message
from tests.messages.test_streams import Event, Reader, reading
from tests.web.caller import Caller
from tests.web.gateway_calls import Run, make_runner, until

pytestmark = pytest.mark.one_app


def test_answers_are_in_the_order_asked(owner: Caller) -> None:
    """Each queue is read by its own parameters, and answered as a range read with its name."""
    owner.create("a", partitions=2)
    owner.create("b")
    owner.post("a", "a1", X_Partition="1")
    second = owner.post("a", "a2", X_Partition="2")["key"]
    owner.batch("b", {"body": "b1"}, {"body": "b2"})
    reply = owner.send_json(
        "POST",
        "_read",
        {
            "queues": [
                {"queue_name": "b", "limit": 1, "order": "descending"},
                {"queue_name": "a", "partitions": "*", "merge": True},
                {"queue_name": "a", "partitions": [2], "since": second, "delay": 0},
                {"queue_name": "a", "partitions": "1,2", "after": second, "limit": "5", "delay": None},
            ]
        },
    )
    queues = reply.json["queues"]
    assert [queue["queue_name"] for queue in queues] == ["b", "a", "a", "a"]
    assert [[m["body"] for m in queue["messages"]] for queue in queues] == [["b2"], ["a1", "a2"], ["a2"], []]
    assert queues[2]["cursor_safe"] is False
    assert owner.get("b", since=queues[0]["cursor"], order="descending").bodies == ["b1"]


def test_one_bad_queue_leaves_the_others(owner: Caller, guest: Caller) -> None:
    """An unknown queue and one of another caller are reported in their places; the rest is read."""
    owner.create("private")
    owner.create("public", type="public")
    owner.post("public", "hello")
    content = {"queues": [{"queue_name": name} for name in ("private", "public", "missing", "", "_x")]}
    reply = guest.send_json("POST", "_read/", content)
    assert reply.status == 400
    assert reply.errors == {"3.queue_name": "Required"}
    del content["queues"][3]
    private, public, missing, reserved = guest.send_json("POST", "_read", content).json["queues"]
    assert private == {
        "status": "error",
        "queue_name": "private",
        "error_msg": {"Forbidden": "Access was denied to this resource."},
    }
    assert [message["body"] for message in public["messages"]] == ["hello"]
    assert list(missing["error_msg"]) == list(reserved["error_msg"]) == ["InvalidQueueName"]


def test_bad_parameters_are_named_by_index(owner: Caller) -> None:
    """Every bad field of every queue is reported together."""
    owner.create("q")
    reply = owner.send_json(
        "POST",
        "_read",
        {
            "queues": [
                {"queue_name": "q", "limit": 0, "since": "x"},
                {"queue_name": 5},
                7,
                {"queue_name": "q", "partitions": [1.5], "order": "up"},
                {"queue_name": "q", "partitions": {}, "until": 5},
            ],
            "wait": 30,
        },
    )
    assert reply.status == 400
    assert reply.errors == {
        "wait": "30 is greater than maximum value 20",
        "0.limit": "0 is less than minimum value 1",
        "0.since": '"x" is not a message id, seconds since 1970, ISO 8601 with a zone, or a cursor',
        "1.queue_name": '"5" is not a string',
        "2": '"7" is not an object',
        "3.partitions": '"[1.5]" is not a list of partitions',
        "3.order": '"up" is not one of ascending, descending',
        "4.partitions": '"{}" is not a string',
        "4.until": '"5" is not a message id, seconds since 1970, ISO 8601 with a zone, or a cursor',
    }


def test_number_of_queues_is_bounded(owner: Caller) -> None:
    """No queue gives no answer, a hundred are read, one more is refused."""
    owner.create("q")
    assert owner.send_json("POST", "_read", {"queues": []}).json == {"status": "ok", "queues": []}
    hundred = [{"queue_name": "q"}] * 100
    assert len(owner.send_json("POST", "_read", {"queues": hundred}).json["queues"]) == 100
    assert owner.send_json("POST", "_read", {"queues": [*hundred, {"queue_name": "q"}]}).status == 400


# Reads that may wait: when they wait, and for which messages. For the end of a wait see the gateway's tests


def test_a_message_outside_of_the_range_does_not_end_the_wait(owner: Caller) -> None:
    """Only messages that the read would give count."""
    owner.create("q", partitions=2)
    owner.post("q", "x", X_Partition="2")
    assert owner.get("q", wait="0.05", partitions="1").messages == []


def test_an_error_in_one_of_several_queues_prevents_the_wait(owner: Caller) -> None:
    """A read of several queues answers at once if one of them does not exist."""
    owner.create("a")
    content = {"queues": [{"queue_name": "a"}, {"queue_name": "missing"}], "wait": 20}
    assert owner.send_json("POST", "_read", content).json["queues"][-1]["status"] == "error"


# Early messages over HTTP: in pages, long polls, and streams


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
    body = {"queues": [{"queue_name": queue, "early": True}, {"queue_name": queue}]}
    early, plain = owner.send_json("POST", "_read", body).json["queues"]
    assert (shown(early), shown(plain)) == ([("a", True), ("b", True)], [])
    for otherwise in ({}, {"early": "0"}, {"early": "false"}, {"early": ""}):
        assert shown(owner.get(queue, **otherwise).json) == []


@pytest.mark.parametrize("how", [{"order": "descending"}, {"delay": "0"}])
def test_what_cannot_be_early(owner: Caller, queue: str, how: dict[str, str]) -> None:
    """Early messages follow the page below the horizon, which others do not have."""
    reply = owner.get(queue, early=1, **how)
    assert (reply.status, reply.json["error_msg"].keys()) == (400, {"early"})


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

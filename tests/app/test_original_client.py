"""The requests of the original client, queuey-py, exactly as it sends them, and what it needs of the answers."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from queuey.app.service import App
from tests.tenants import KEY
from tests.web.caller import Caller, Reply


class OriginalClient:
    """Sends the original client's requests: same headers, bodies and trailing slashes."""

    def __init__(self, app: App) -> None:
        self.caller = Caller(app, f"Application {KEY}")

    def _send(self, method: str, url: str, params: dict[str, Any] | None, data: str, headers: dict[str, str]) -> Reply:
        query = f"?{urlencode(params)}" if params else ""
        return self.caller(method, f"/v1/queuey/{url}{query}", data, headers=headers)

    def get(self, url: str = "", params: dict[str, Any] | None = None) -> Reply:
        return self._send("GET", url, params, "", {})

    def post(
        self,
        url: str = "",
        params: dict[str, Any] | None = None,
        data: str | dict[str, Any] | list[str] = "",
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Sends a POST: text as it is, a dict as a form, a list as a batch without the caller's headers."""
        if isinstance(data, list):
            messages = json.dumps({"messages": [{"body": item, "ttl": 259200} for item in data]})
            return self._send("POST", url, params, messages, {"content-type": "application/json"})
        if isinstance(data, dict):
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            return self._send("POST", url, params, urlencode(data), form | (headers or {}))
        return self._send("POST", url, params, data, headers or {})

    def create_queue(self, **data: object) -> str:
        name: str = self.post(data={"partitions": 1, **data}).json["queue_name"]
        return name

    def messages(
        self, queue: str, partition: int | str = 1, since: str | None = None, limit: int = 100, order: str = "ascending"
    ) -> list[dict[str, Any]]:
        """Reads messages, without the message that ``since`` names."""
        params: dict[str, Any] = {"limit": limit, "order": order, "partitions": partition}
        if since is not None:
            params["since"] = since
        return [message for message in self.get(queue, params).messages if message["message_id"] != since]


@pytest.fixture
def client(app: App) -> OriginalClient:
    return OriginalClient(app)


def test_connect(client: OriginalClient) -> None:
    """The original client opens its connection with HEAD on the heartbeat."""
    assert client.caller("HEAD", "/__heartbeat__").status == 200


def test_create_queue(client: OriginalClient) -> None:
    """It creates queues by form, named or not, and reads the name from the answer; a repeat is not an error."""
    assert client.create_queue(queue_name="mine") == "mine"
    assert client.create_queue(queue_name="mine") == "mine"
    assert len(client.create_queue(partitions=3)) == 32
    queues = client.get(params={"details": "True"}).json["queues"]
    assert sorted(queue["partitions"] for queue in queues) == [1, 3]


def test_messages(client: OriginalClient) -> None:
    """It reads on from the last id it saw, with or without limit, in either order, one partition or several."""
    name = client.create_queue(partitions=2, queue_name="q")
    for number in range(5):
        assert client.post(name, data=f"m{number}", headers={"X-Partition": "1"}).status == 201
    client.post(name, data="other", headers={"X-Partition": "2", "X-TTL": "300"})
    first = client.messages(name, limit=3)
    assert [m["body"] for m in first] == ["m0", "m1", "m2"]
    assert {m["partition"] for m in first} == {1}
    following = client.messages(name, since=first[-1]["message_id"])
    assert [m["body"] for m in following] == ["m3", "m4"]
    assert [m["body"] for m in client.messages(name, since=first[-1]["timestamp"])] == ["m2", "m3", "m4"]
    assert [m["body"] for m in client.messages(name, order="descending", limit=2)] == ["m4", "m3"]
    assert [m["body"] for m in client.messages(name, partition="2,1", limit=1)] == ["other", "m0"]
    assert client.messages(name, since=first[0]["message_id"], limit=1) == []


def test_batches(client: OriginalClient) -> None:
    """A list goes out as a JSON batch with three days to live."""
    name = client.create_queue()
    response = client.post(name, data=["a", "ü", "c"])
    assert response.status == 201
    assert [m["partition"] for m in response.messages] == [1, 1, 1]
    assert [m["body"] for m in client.messages(name)] == ["a", "ü", "c"]


def test_text_beyond_ascii(client: OriginalClient) -> None:
    """Every JSON answer with text names its charset: without one the client's HTTP library guesses, wrongly."""
    name = client.create_queue()
    body = "Ærøskøbing, 東京"
    key = client.post(name, data=[body]).messages[0]["key"]
    replies = [client.get(name), client.get(f"{name}/{key}")]
    refused = client.get(name, {"order": body})
    assert [reply.headers["Content-Type"] for reply in [*replies, client.get(), refused]] == [
        "application/json; charset=utf-8"
    ] * 4
    assert [reply.bodies for reply in replies] == [[body]] * 2
    assert body in refused.errors["order"]


def test_put_and_delete(client: OriginalClient) -> None:
    """It overwrites and deletes by id, with a partition before a percent-encoded colon, and deletes queues."""
    name = client.create_queue(partitions=2)
    key = client.post(name, data="x", headers={"X-Partition": "2"}).messages[0]["key"]
    assert client.caller("PUT", f"{name}/2%3A{key}", "y", headers={"X-TTL": "300"}).json == {"status": "ok"}
    assert client.get(f"{name}/2%3A{key}").bodies == ["y"]
    assert client.caller("DELETE", f"{name}/2%3A{key}").json == {"status": "ok"}
    assert client.messages(name, partition=2) == []
    assert client.caller("DELETE", name).json == {"status": "ok"}
    assert client.get(name).status == 404


def test_original_fields_keep_names_and_types(client: OriginalClient) -> None:
    """What the original answered is there under the same names, in the same types."""
    name = client.create_queue(partitions=2, queue_name="q")
    client.post(name, data="x", headers={"X-Partition": "1"})
    [listed] = client.get(params={"details": "true", "include_count": "true"}).json["queues"]
    types = {key: type(value) for key, value in listed.items()}
    assert types == {
        "queue_name": str,
        "application": str,
        "created": float,
        "partitions": int,
        "type": str,
        "consistency": str,
        "count": int,
    }
    [message] = client.messages(name)
    assert {key: type(value) for key, value in message.items()} == {
        "message_id": str,
        "timestamp": str,
        "body": str,
        "partition": int,
    }
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    updated = client.caller("PUT", name, "partitions=3&type=public", headers=form).json
    assert updated.keys() >= {"status", "queue_name", "partitions", "created", "principles", "type"}
    assert (updated["partitions"], updated["principles"], updated["type"]) == (3, [], "public")

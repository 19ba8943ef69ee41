"""Messages by id: get, raw, put, delete."""

from __future__ import annotations

import pytest

from queuey.messages.message_views import make_raw_response
from queuey.model.messages import Message, Meta
from tests.web.caller import Caller

pytestmark = pytest.mark.one_app

ID = "0123456789ab11e88000000000000001"
OTHER = "0123456789ab11e88000000000000002"


@pytest.fixture
def queue(owner: Caller) -> str:
    return owner.create("q", partitions=3)


def test_put_keeps_what_is_given(owner: Caller, queue: str) -> None:
    """Content type and headers are kept, and JSON stays text."""
    headers = {"Content-Type": "application/json", "X-Header-A": "b"}
    owner("PUT", f"{queue}/{ID}", '{"a": 1}', headers=headers)
    [message] = owner.get(f"{queue}/{ID}").messages
    assert message == {
        "message_id": ID,
        "timestamp": message["timestamp"],
        "partition": 1,
        "body": '{"a": 1}',
        "content_type": "application/json",
        "headers": {"a": "b"},
    }


@pytest.mark.parametrize("partition", [0, 4, 201])
def test_partitions_beyond_the_queue(owner: Caller, queue: str, partition: int) -> None:
    """Nothing can be put into a partition that does not exist; reading and deleting there finds nothing."""
    reply = owner("PUT", f"{queue}/{ID},{partition}:{ID}", "x")
    assert (reply.status, list(reply.errors)) == (400, ["partition"])
    assert owner.get(f"{queue}/{ID},{partition}:{ID}").messages == []
    assert owner("DELETE", f"{queue}/{partition}:{ID}").json == {"status": "ok"}


def test_put_refuses_like_post(owner: Caller, queue: str) -> None:
    """Empty bodies, bad TTLs and long bodies are refused, at an id and under a name."""
    errors = {"body": "Required", "ttl": "0 is less than minimum value 1"}
    for path in (f"{queue}/{ID}", f"{queue}/named/n"):
        assert owner("PUT", path, "", headers={"X-TTL": "0"}).errors == errors
        assert owner("PUT", path, b"x" * (256 * 1024 + 1)).status == 413


@pytest.mark.parametrize("path", [f"2%3A{ID}%2C{OTHER}", f"%202:{ID}%20,%20{OTHER}", f"02:{ID},1:{OTHER}"])
def test_forms_of_ids(owner: Caller, queue: str, path: str) -> None:
    """Partition and case, raw or percent-encoded separators, and spaces around ids make no difference."""
    owner("PUT", f"{queue}/2:{ID}", "a")
    owner("PUT", f"{queue}/{OTHER}", "b")
    assert owner.get(f"{queue}/{path}").bodies == ["a", "b"]
    assert owner("DELETE", f"{queue}/{path}/").json == {"status": "ok"}
    assert owner.get(f"{queue}/{path}").bodies == []


def test_missing_ones_are_left_out(owner: Caller, queue: str) -> None:
    """A fetch returns existing messages in the requested order; deleting a missing one is a success."""
    owner("PUT", f"{queue}/{OTHER},{ID}", "x")
    messages = owner.get(f"{queue}/{OTHER},3:{ID},{ID}").messages
    assert [message["message_id"] for message in messages] == [OTHER, ID]
    assert owner("DELETE", f"{queue}/3:{ID}").json == {"status": "ok"}


def test_raw_is_safe_to_serve(owner: Caller, queue: str) -> None:
    """A raw body is an attachment that no browser sniffs, whatever its type; its place is in headers."""
    owner("PUT", f"{queue}/2:{ID}", "<script>", headers={"Content-Type": "text/html"})
    raw = owner.get(f"{queue}/2:{ID}", raw="true")
    assert raw.body == b"<script>"
    assert raw.headers == {
        "Content-Type": "text/html",
        "Content-Disposition": "attachment",
        "X-Content-Type-Options": "nosniff",
        "X-Message-Id": ID,
        "X-Timestamp": owner.get(f"{queue}/2:{ID}").messages[0]["timestamp"],
        "X-Partition": "2",
        "Cache-Control": "no-store",
        "Content-Length": "8",
    }


def test_raw_takes_one_id_that_exists(owner: Caller, queue: str) -> None:
    """Raw with several ids is refused; a missing message is 404."""
    assert list(owner.get(f"{queue}/{ID},{OTHER}", raw="true").errors) == ["raw"]
    missing = owner.get(f"{queue}/{ID}", raw="true")
    assert (missing.status, list(missing.errors)) == (404, ["InvalidMessageID"])
    assert owner.get(f"{queue}/{ID}", raw="false").messages == []


@pytest.mark.parametrize(
    ("encoding", "body", "errors"),
    [
        ("xml", "[1]", {"encoding": '"xml" is not one of json'}),
        ("json", "[1", {"body": "Is not JSON that every reader can parse"}),
        ("json", "", {"body": "Required"}),
        ("json", '""', {"body": "Required"}),
    ],
)
def test_bodies_that_should_be_json(
    owner: Caller, queue: str, encoding: str, body: str, errors: dict[str, str]
) -> None:
    """A body that is said to be JSON has to be, in a post as in a put; nothing is stored otherwise."""
    headers = {"X-Encoding": encoding, "Content-Type": "text/plain"}
    for method, path in (("POST", queue), ("PUT", f"{queue}/{ID}")):
        reply = owner(method, path, body, headers=headers)
        assert (reply.status, reply.errors) == (400, errors)
    assert owner.get(queue, partitions="*", delay=0).messages == []


def test_headers_that_no_server_could_send() -> None:
    """Control characters that other programs have stored are percent-encoded, as all but printable ASCII."""
    meta = Meta("text/x\x7f", (("a", "b\r\nX-Evil: é\t%"),))
    headers = dict(make_raw_response(Message(2**60, 1, partition=1, expires=0, body="x", meta=meta)).headers)
    assert (headers["X-Header-a"], headers["Content-Type"]) == ("b%0D%0AX-Evil: %C3%A9%09%", "text/x%7F")

"""Names in paths that are encoded once, twice or oddly: they name the intended resource or none, never another one."""

from __future__ import annotations

import pytest

from tests.acceptance.wire import Wire, bodies
from tests.servers.served import Served

NESTED = ["%2F", "%2f", "%252F", "%25252F", "%c0%af", "%C0%2F", "%e0%80%af", "%5C", "%uff0f", "%EF%BC%8F"]
DOTS = [".", "..", "%2e", "%2E%2E", ".%2e", "%252e%252e", "%c0%ae%c0%ae"]


@pytest.mark.parametrize("slash", NESTED)
@pytest.mark.parametrize(
    ("method", "after"),
    [("DELETE", "messages"), ("DELETE", ""), ("GET", "info"), ("DELETE", "offsets{slash}g"), ("POST", "")],
)
def test_slashes(served: Served, wire: Wire, queue: str, method: str, after: str, slash: str) -> None:
    """A slash inside of a name separates nothing, however it is encoded: nothing is purged, deleted or shown."""
    reply = wire.ask(f"{method} /v1/queuey/{queue}{slash}{after.format(slash=slash)}", b"x", "Content-Length: 1")
    assert reply.status in {400, 404}
    reply = wire.ask(f"{method} /v1/queuey{slash}{queue}{slash}{after.format(slash=slash)}", b"x", "Content-Length: 1")
    assert reply.status in {400, 404}
    assert wire.is_usable()
    with served.client() as client:
        assert [message.body for message in client.read(queue).messages] == ["known"]


@pytest.mark.parametrize("dots", DOTS)
@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "POST"])
def test_dots(served: Served, wire: Wire, queue: str, method: str, dots: str) -> None:
    """``.`` and ``..`` name nothing at any place, as text or encoded: no proxy can take them for another path."""
    group = b'{"partitions":{"1":{"offset":"' + b"0" * 12 + b"1" + b"0" * 3 + b"8" + b"0" * 15 + b'"}}}'
    for path in (f"{queue}/offsets/{dots}", f"{queue}/{dots}", f"{dots}/{queue}", f"{queue}/{dots}/info", dots):
        reply = wire.ask(f"{method} /v1/queuey/{path}", group, f"Content-Length: {len(group)}")
        # A name that is encoded twice is a name like any other, of a resource that has no POST.
        assert reply.status in ({400, 404, 405} if "%25" in dots else {400, 404}), path
    assert wire.is_usable()
    assert bodies(served, queue) == []


def test_what_is_encoded_once_is_the_name(served: Served, wire: Wire) -> None:
    """Needless encoding changes nothing, and a name that is encoded twice contains a percent sign."""
    with served.client() as client:
        name = client.create_queue("50%2F50 ü").name
        client.send(name, "known")
    assert name == "50%2F50 ü"
    assert wire.ask("POST /v1/%71ueuey/50%252F50%20%c3%BC", b"x", "Content-Length: 1").status == 201
    assert wire.ask("GET /v1/queuey/50%2F50%20%C3%BC").status == 404
    assert bodies(served, name) == ["x"]
    assert wire.ask("DELETE /v1/queuey/50%252F50%20%c3%BC").status == 200

"""Names in paths that are encoded once, twice or oddly: they name the intended resource or none, never another one."""

from __future__ import annotations

import pytest

from tests.acceptance.wire import Wire, bodies
from tests.servers.served import Served

NESTED = ["%2F", "%252F", "%c0%af", "%5C", "%uff0f"]


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

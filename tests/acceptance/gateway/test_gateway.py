"""The service on the wire: bodies at a real process. For refused requests see tests/web/http."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MAX_BODY
from tests.acceptance.wire import CHUNKED, Wire, chunks, post
from tests.servers.served import Served


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (chunks(b"a", b"bc"), [CHUNKED], 201),
        (chunks(b"x" * MAX_BODY), [CHUNKED], 201),
        (chunks(*[b"x"] * MAX_BODY), [CHUNKED], 201),
        (chunks(b"x" * MAX_BODY, b"x"), [CHUNKED], 413),
        (chunks(b"a;", end=b"0;x=y\r\n\r\n"), [CHUNKED], 201),
        (chunks(), [CHUNKED], 400),
        (b"", ["Content-Length: 0"], 400),
        (b"", [], 400),
        (bytes(range(256)), ["Content-Length: 256"], 201),
        (b"x" * MAX_BODY, [f"Content-Length: {MAX_BODY}"], 201),
        (b"x" * (MAX_BODY + 1), [f"Content-Length: {MAX_BODY + 1}"], 413),
        (b"abc", ["Content-Length: 3", "Expect: something"], 201),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bodies(served: Served, wire: Wire, queue: str, body: bytes, headers: list[str], status: int) -> None:
    """Bodies come in plain or chunked, up to the limit; the connection can be used again, whatever the answer."""
    assert wire.ask(post(queue), body, *headers).status == status
    assert wire.is_usable()
    with served.client() as client:
        stored = client.read(queue).messages[1:]
    assert len(stored) == (status == 201)
    if status == 201 and CHUNKED not in headers:
        content = stored[0].body
        assert (content.encode() if isinstance(content, str) else content) == body

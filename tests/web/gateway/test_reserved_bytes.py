"""No answer is longer than its reserved bytes plus one of the longest messages, whatever bodies contain."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queuey.app.service import App
from queuey.model.messages import MAX_ESCAPED_BYTES, MAX_MESSAGE_FRAME_BYTES
from queuey.runtime.limits import Limits
from queuey.web.admission.scheduling import Share
from queuey.web.gateway import Gateway
from tests.replacing import replace
from tests.web.caller import Caller
from tests.web.gateway_calls import Request, make_runner

PAGE, BODY = 300_000, 16_384
LONGEST = MAX_ESCAPED_BYTES * BODY + MAX_MESSAGE_FRAME_BYTES
CHARACTERS = st.sampled_from(["\x01", '"', "\\", "\n", "x", "ü", "\U0001f409", "\x7f", "\u2028"])
LONG = st.builds(
    lambda character, share: character * (BODY * share // len(character.encode()) // 8), CHARACTERS, st.integers(1, 8)
)
BYTES = st.integers(1, BODY).map(lambda length: b"\xff" * length)
PARTITIONS = 8


@pytest.fixture
def limits() -> Limits:
    """Pages that a few bodies of control characters fill when escaped, though not by their characters."""
    return Limits(page_bytes=PAGE, max_body=BODY, max_batch_bytes=1 << 23)


class ReservedBytesCheck:
    """Keeps the most bytes that were reserved for an answer when its request gave them back."""

    def __init__(self) -> None:
        self.most = 0
        self._real = Share.release

    def release(self, share: Share, **kept: Any) -> None:  # noqa: ANN401
        self.most = max(self.most, share.reserved_bytes)
        self._real(share, **kept)


def requests(ids: list[str]) -> list[Request]:
    drawn = []
    for order in ("ascending", "descending"):
        queries = [f"limit=1000&order={order}{more}" for more in ("", "&partitions=*", "&partitions=*&merge=true")]
        drawn += [Request("GET", query=query) for query in queries]
        several = [
            {"queue_name": "q", "partitions": "*", "order": order, "limit": 1000, "merge": n % 2} for n in range(6)
        ]
        drawn.append(Request("POST", "/v1/queuey/_read", json.dumps({"queues": several}).encode()))
    drawn.append(Request("GET", query="limit=1"))
    drawn += [Request(method, "/v1/queuey/q/peek", query="limit=1000") for method in ("GET", "HEAD")]
    drawn += [Request("GET", "/v1/queuey/q/" + ",".join(some)) for some in (ids[:1], ids)]
    drawn += [Request("POST", "/v1/queuey/q/claims", query=f"limit=1000&ttl={ttl}") for ttl in (0, 0, 60, 60)]
    return drawn


def _item(body: str | bytes, number: int) -> dict[str, Any]:
    """Returns an item of a batch: bytes in Base64, and each fifth one with a header that JSON doubles."""
    item: dict[str, Any] = {"body": body, "partition": 1 + number % PARTITIONS}
    if isinstance(body, bytes):
        item |= {"body": b64encode(body).decode(), "encoding": "base64"}
    return item | ({} if number % 5 else {"headers": {"a": '"' * 900}})


@settings(max_examples=6)
@given(long=st.lists(LONG | BYTES, min_size=1, max_size=40), tiny=st.sampled_from([0, 400, 900]))
@example(long=["\x01" * BODY] * 40, tiny=0)
@example(long=["x"], tiny=900)
def test_answers_fit_into_what_is_reserved_for_them(
    app: App, owner: Caller, long: list[str | bytes], tiny: int
) -> None:
    """Ranges, ids, reads of many queues, merged ones, peek, claims and HEAD count all that the answer has."""
    if owner.get("q").status == 200:
        owner("DELETE", "q", delete="true")
    owner.create("q", partitions=PARTITIONS, max_deliveries=0)
    items = [_item(body, number) for number, body in enumerate([*long, *["x"] * tiny])]
    posted = owner.batch("q", *items).messages
    ids = [f"{message['partition']}:{message['key']}" for message in posted[: len(long)]]
    reserved = ReservedBytesCheck()

    async def ask(gateway: Gateway) -> None:
        for request in requests(ids):
            reserved.most = 0
            reply = await request.to(gateway)
            assert reply.status in {200, 413}, reply
            assert reserved.most or reply.status == 413, "nothing was reserved"
            size = int(reply.headers["content-length"])
            assert size <= reserved.most + LONGEST, (request.path, request.query, size, reserved.most)
        assert gateway.shares.memory.free == gateway.shares.memory.total

    # A plain function, which becomes a method.
    with replace(Share.release, lambda *given, **kept: reserved.release(*given, **kept)):  # noqa: PLW0108
        make_runner(app, page_bytes=PAGE)(ask)

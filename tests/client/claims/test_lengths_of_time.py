"""Durations are seconds or timedeltas."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from queuey.client import InvalidAnswer, InvalidArgument, Outgoing
from tests.client.conftest import Connect
from tests.client.scripted import Script, ok

MINUTE, HALF, DAY = timedelta(minutes=1), timedelta(milliseconds=500), timedelta(days=1)
RECEIPT = "1-0123456789ab11e88000000000000001-1-9c08f02cb6dbcc-d5be0d"


@pytest.mark.parametrize(
    ("call", "sent"),
    [
        (lambda c: c.send("q", "x", ttl=DAY, delay=HALF), {"x-ttl": "86400", "x-delay": "0.5"}),
        (lambda c: c.send("q", json=1, ttl=DAY, delay=HALF), {"ttl": 86400, "delay": 0.5}),
        (lambda c: c.send_many("q", [Outgoing(json=1, ttl=DAY)]), {"ttl": 86400}),
        (lambda c: c.create_queue("q", ttl=DAY, read_delay=HALF), {"ttl": 86400, "read_delay": 0.5}),
        (lambda c: c.job_queue("q").receive(ttl=MINUTE, wait=HALF), {"ttl": "60", "wait": "0.5"}),
        (lambda c: c.job_queue("q").renew(RECEIPT, MINUTE), {"ttl": 60}),
        (lambda c: c.job_queue("q").release(RECEIPT, MINUTE), {"delay": 60}),
        (lambda c: c.read("q", wait=HALF), {"wait": "0.5"}),
        (lambda c: c.read_queues(["q"], wait=HALF), {"wait": 0.5}),
    ],
    ids=["text", "JSON", "batch", "queue", "claim", "renewal", "release", "read", "several queues"],
)
def test_a_timedelta_is_sent_as_seconds(
    connect: Connect, call: Callable[[Any], object], sent: dict[str, object]
) -> None:
    """A timedelta goes out as its seconds, a whole number as one."""
    script = Script(ok())
    with suppress(InvalidAnswer):
        call(connect(script))
    (request,) = script.requests
    body = json.loads(request.content) if request.content.startswith(b"{") else {}
    item = body["messages"][0] if "messages" in body else {}
    assert sent.items() <= {**dict(request.headers), **dict(request.url.params), **body, **item}.items()


def test_a_message_keeps_seconds() -> None:
    """The message keeps the seconds, so that nothing that reads it has to know timedeltas."""
    assert Outgoing("x", ttl=DAY, delay=HALF) == Outgoing("x", ttl=86_400, delay=0.5)
    with pytest.raises(InvalidArgument, match="delay is 'soon': give seconds as a number"):
        Outgoing("x", delay="soon")  # type: ignore[arg-type] # what no type checker sees

"""Each fast way of a request ends as the slow way does, with the same answers, errors and messages.

A fast way answers from caches, in the loop's thread or without waiting. Here each is switched off in turn, while
another process changes queues and rights, so that what is cached is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from queuey.access.authorization import Authenticator
from queuey.access.credentials.readers import Identity, digest_of
from queuey.app.application import make_app
from queuey.model.errors import StoreBusy
from queuey.model.messages import QueueSpec, Scope
from queuey.model.rights import ANYBODY, Grant
from queuey.storage import Store, bridge
from queuey.storage.sqlite import SqliteOptions, open_store
from queuey.storage.sqlite.catalogue import SqliteCatalogue
from queuey.storage.sqlite.connection import Readers
from queuey.web.admission.scheduling import Share
from queuey.web.requests import Request
from tests.replacing import replace
from tests.web.caller import Caller, Reply, Tokens
from tests.web.gateway_calls import stop_all


def refuse_busy(*_: object) -> None:
    message = "no connection is free"
    raise StoreBusy(message)


FAST_WAYS: dict[str, tuple[object, Callable[..., Any]]] = {
    "callers from the cache": (Authenticator.cached_caller, lambda _, header: ANYBODY if header is None else None),
    "rows from the cache": (SqliteCatalogue.cached_queue, lambda *_: None),
    "reads in the loop's thread": (Readers.read_without_waiting, refuse_busy),
    "short reads, and memory that is free": (Share.reserve_at_once, lambda *_: False),
    "short bodies in the loop's thread": (Request.parse_body, lambda request, work: request.in_thread(work)),
}
CHANGES: dict[str, Callable[[Store], object]] = {
    "purge": lambda other: change(other, other.catalogue.purge_queue),
    "more partitions": lambda other: change(other, other.catalogue.update_queue, QueueSpec(partitions=3)),
    "hidden": lambda other: change(other, other.catalogue.update_queue, QueueSpec(type="user", partitions=3)),
    "deleted": lambda other: change(other, other.catalogue.delete_queue),
    "made anew": lambda other: bridge.run(other.catalogue.create_queue("queuey", "q", QueueSpec(type="public"))),
}
JSON = {"Content-Type": "application/json"}
REQUESTS: list[tuple[str, str, str, dict[str, str]]] = [
    ("POST", "q", "one", {"X-Partition": "1"}),
    ("POST", "q", "two", {"X-Partition": "2"}),
    ("POST", "q", '{"messages": [{"body": "three", "partition": 1}, {"body": ""}]}', JSON),
    ("POST", "q", "four", {"X-TTL": "-1", "X-Delay": "x"}),
    ("GET", "q", "", {}),
    ("GET", "q?partitions=1&limit=2&order=descending", "", {}),
    ("GET", "q?partitions=2,9&since=5", "", {}),
    ("GET", "q?since=never&limit=0", "", {}),
    ("GET", "none", "", {}),
    ("GET", "q/0123456789ab11e88000000000000001", "", {}),
    ("PUT", "q/0123456789ab11e88000000000000001", "put", {}),
    ("GET", "q/nothing", "", {}),
    ("PUT", "q/named/stock", "17 pears", {}),
    ("POST", "q", '{"messages": [{"body": "five", "partition": 1}]}', JSON),
    ("POST", "q/claims?limit=1&ttl=60&partitions=1", "", {}),
    ("PUT", "q/read", '{"until": "0123456789ab11e88000000000000001"}', JSON),
    ("POST", "_unread", '{"queues": ["q", "none"]}', JSON),
    ("POST", "_read", '{"queues": [{"queue_name": "q"}, {"queue_name": "none"}]}', JSON),
    ("DELETE", "q/0123456789ab11e88000000000000001", "", {}),
]
CALLERS = {"owner": "a" * 64, "reader": "b" * 64, "guest": "c" * 64}
VOLATILE = re.compile(rb'[0-9a-f]{32}[^"]*|[0-9]+\.[0-9]+|crash id \w+')
"""Ids, receipts, cursors and times."""


def change(other: Store, by: Callable[..., Any], *arguments: object) -> None:
    bridge.run(by(bridge.run(other.catalogue.queue("queuey", "q", fresh=True)), *arguments))


@contextmanager
def callers() -> Iterator[tuple[Store, dict[str, Caller]]]:
    """Starts a service with hidden queues. Yields the store of another process, and callers with various rights."""
    with TemporaryDirectory() as directory, ExitStack() as stack:
        options = SqliteOptions(sweep_interval=None)
        store, other = (stack.enter_context(closing(open_store(Path(directory), options=options))) for _ in range(2))
        for name in ("queuey", "guest"):
            bridge.run(store.applications.create_application(name))
        for name, key in CALLERS.items():
            scope = Scope(("read",), ("q",)) if name == "reader" else None
            owner = "guest" if name == "guest" else "queuey"
            bridge.run(store.applications.add_key(owner, digest_of(key), scope=scope))
        tokens = Tokens()
        grant = Grant("queuey", frozenset({"read", "delete"}), "q")
        tokens.known["ann"] = Identity(frozenset({"queuey user:ann"}), (grant,), "users of queuey", None)
        app = make_app(store, readers=[tokens], private={"queuey"}, clock=lambda: 0.0)
        stack.callback(stop_all)
        credentials = {name: f"Application {key}" for name, key in CALLERS.items()}
        headers: dict[str, str | None] = {**credentials, "ann": "Token ann", "nobody": None}
        yield other, {name: Caller(app, header) for name, header in headers.items()}


def essence(reply: Reply) -> tuple[int, bytes]:
    return reply.status, VOLATILE.sub(b"~", reply.body)


def play() -> dict[str, tuple[int, bytes]]:
    """Makes all requests of all callers, after each change by another process. Returns the answers."""
    replies = {}
    with callers() as (other, known):
        assert known["owner"].create("q", type="public") == "q"
        for step, make_change in CHANGES.items():
            make_change(other)
            for method, path, body, headers in REQUESTS:
                for name, caller in known.items():
                    place, _, query = path.partition("?")
                    reply = caller.send(method, f"/v1/queuey/{place}", body.encode(), headers, query)
                    replies[f"{step}: {name} {method} {path} {headers}"] = essence(reply)
    return replies


@cache
def play_with_all() -> dict[str, tuple[int, bytes]]:
    return play()


@pytest.mark.parametrize("way", FAST_WAYS)
def test_a_request_ends_as_without_its_fast_way(way: str) -> None:
    """Whatever another process has changed, and whoever asks, the answer is that of the slow way."""
    expected = play_with_all()
    assert {status for status, _ in expected.values()} >= {200, 201, 400, 401, 403, 404}
    fast, slow = FAST_WAYS[way]
    uses = []

    def without(*arguments: Any) -> Any:  # noqa: ANN401 - as the fast way
        uses.append(way)
        return slow(*arguments)

    with replace(fast, without):
        replies = play()
    assert uses
    different = {label: (expected[label], reply) for label, reply in replies.items() if reply != expected[label]}
    assert different == {}

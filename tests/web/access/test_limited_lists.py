"""Lists of queues with keys that are limited to some of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.access import matches
from queuey.errors import InvalidRequest
from queuey.messages import QueueSpec, Scope
from queuey.service import Limits
from queuey.service.core import Core
from queuey.service.queues import Queues
from queuey.storage import Store, bridge
from queuey.web.credentials import digest_of
from queuey.web.parts import App
from tests.web.caller import Caller

NAMES = ["".join(letters) for length in (1, 2, 3) for letters in itertools.product("aé*", repeat=length)]
NUMBERS = itertools.count()


def make_limited_caller(app: App, store: Store, *patterns: str) -> Caller:
    secret = f"limited{next(NUMBERS)}"
    bridge.run(store.applications.add_key("queuey", digest_of(secret), scope=Scope(("measure",), patterns)))
    return Caller(app, f"Application {secret}")


@pytest.fixture
def many(app: App, store: Store) -> App:
    for name in NAMES:
        bridge.run(store.catalogue.create_queue("queuey", name, QueueSpec()))
    return app


@given(
    patterns=st.lists(st.text("aé*", min_size=1, max_size=3), min_size=1, max_size=4),
    start=st.text("aé*", max_size=2),
    limit=st.integers(1, 7),
)
def test_pages_have_what_matches(many: Any, store: Store, patterns: list[str], start: str, limit: int) -> None:  # noqa: ANN401
    """Page after page shows each queue that matches once, by name, and names no other, also not as the next."""
    caller = make_limited_caller(many, store, *patterns)
    listed: list[str] = []
    following: str | None = start
    while following is not None:
        page = caller.get("", offset=following, limit=limit).json
        names = [queue["queue_name"] for queue in page["queues"]]
        following = page["next"]
        assert page["patterns"] == (["*"] if "*" in patterns else list(dict.fromkeys(patterns)))
        assert len(names) == limit or following is None
        listed += names
    expected = [name for name in NAMES if name >= start and any(matches(pattern, name) for pattern in patterns)]
    assert listed == sorted(expected)


def test_a_list_looks_at_so_many_queues(store: Store, app: App) -> None:
    """Where too many queues do not match, the list is refused; a pattern that begins with text leads straight there."""
    for name in (*(f"a{number:04}" for number in range(2100)), "b-z"):
        bridge.run(store.catalogue.create_queue("queuey", name, QueueSpec()))
    queues = Queues(store, Limits(), Core(), max_filtered=1500)
    with pytest.raises(InvalidRequest, match="patterns begin with text"):
        queues.list("queuey", start="", limit=1, patterns=["*-z"])
    page, following = queues.list("queuey", start="", limit=2, patterns=["*-z", "a0000"])
    assert ([queue.name for queue in page], following) == (["a0000"], "a0000\0")
    for start, pattern in (("", "b*z"), ("a2000", "*-z")):
        page, following = queues.list("queuey", start=start, limit=1, patterns=[pattern])
        assert ([queue.name for queue in page], following) == (["b-z"], None)


def test_created_within_the_patterns(app: App, store: Store) -> None:
    """A limited key creates what its patterns match, by name; only one for all queues has names made up."""
    bridge.run(store.applications.add_key("queuey", digest_of("some"), scope=Scope(("admin",), ("a*",))))
    bridge.run(store.applications.add_key("queuey", digest_of("all"), scope=Scope(("admin",), ("a*", "*"))))
    partial, everything = (Caller(app, f"Application {key}") for key in ("some", "all"))
    assert partial.send_form("POST", queue_name="ab").status == 201
    for fields in ({"queue_name": "b"}, {}, {"queue_name": ""}):
        reply = partial.send_form("POST", **fields)
        assert (reply.status, "creates only queues that match a*." in reply.text) == (403, True)
    assert everything.send_form("POST").status == 201

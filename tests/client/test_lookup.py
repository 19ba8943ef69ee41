"""Looking up queues with keys that do not see all of them: found, absent and hidden are three different answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queuey.client import ServiceUnavailable
from queuey.client.lookup import Lookup, find_queues
from tests.client.live import Connect, connected
from tests.client.scripted import Script, async_client, busy

NAMES = ["mails", "mails-1", "orders-a", "orders-b", "payroll", *(f"x{number:02}" for number in range(40))]
REQUESTED_NAMES = ["mails", "nothing", "orders-a", "orders-b", "orders-c", "payroll", "x07", "x08", "x09", "x31", "zz"]


@pytest.fixture(params=["open", "private"])
def privacy(request: pytest.FixtureRequest) -> str:
    """Private applications do not reveal which queues exist."""
    return str(request.param)


@pytest.fixture
async def connect(tmp_path: Path, privacy: str) -> AsyncIterator[Connect]:
    """Makes clients with the rights of their keys, all on one service that has many queues."""
    async with connected(tmp_path / "data", private={"acme"} if privacy == "private" else ()) as make:
        client = make()
        for name in NAMES:
            await client.create_queue(name, partitions=2)
        yield make


def shape(found: Lookup) -> tuple[dict[str, int], set[str], set[str]]:
    return {name: queue.partitions for name, queue in found.found.items()}, {*found.absent}, {*found.hidden}


async def test_what_keys_see(connect: Connect, privacy: str) -> None:
    """With a key for all queues nothing is hidden, outside its patterns a queue is, and one that only sends sees none.

    Inside the patterns absence is certain.
    """
    known = set(REQUESTED_NAMES) & set(NAMES)
    for queues in ("", "*"):
        found = await find_queues(connect("measure", queues), REQUESTED_NAMES)
        assert shape(found) == (dict.fromkeys(known, 2), {*REQUESTED_NAMES} - known, set())
    hidden_names = set(REQUESTED_NAMES) - {"orders-a", "orders-b", "orders-c"}
    visible = {"nothing", "zz"} if privacy == "open" else set()
    for queues in ("orders-*", "*ders-*", "orders-a,orders-b,orders-c"):
        found = await find_queues(connect("read", queues), REQUESTED_NAMES)
        assert shape(found) == ({"orders-a": 2, "orders-b": 2}, {"orders-c"} | visible, hidden_names - visible)
    found = await find_queues(connect("send", "orders-*"), ["orders-a", "orders-c"])
    assert shape(found) == ({}, {"orders-c"}, {"orders-a"})


async def test_a_list_says_what_it_leaves_out(connect: Connect) -> None:
    """A page tells whether it has all queues whose names begin with a text."""
    for queues, prefix, whole in (
        ("", "", True),
        ("*", "orders", True),
        ("orders-*", "orders-", True),
        ("x,orders-*", "orders-a", True),
        ("orders-*", "orders", False),
        ("orders-*", "", False),
        ("orders-*-a", "orders-", False),
        ("*-a", "", False),
        ("orders-", "orders-", False),
    ):
        assert (await connect("measure", queues).queue_page(limit=1)).lists_all(prefix) is whole, (queues, prefix)


async def test_a_failure_is_no_answer() -> None:
    """While the service is down no queue is absent."""
    async with async_client(Script(busy(0))) as client:
        with pytest.raises(ServiceUnavailable):
            await find_queues(client, ["orders"])

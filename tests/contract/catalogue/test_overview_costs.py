"""The calls that an application's overview makes to the store do not grow with the application."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from queuey import storage
from queuey.access.credentials.readers import digest_of
from queuey.app.application import make_app
from queuey.console import overview
from queuey.console.resources import make_console
from queuey.model.messages import QueueSpec
from queuey.storage import Store, bridge
from tests.console.browser import Browser
from tests.contract.samples import fresh_name, make_queue, new_message
from tests.interposed_store import CONTRACTS, InterposedStore
from tests.replacing import replace_in
from tests.web.gateway_calls import stop_all

KEY = "6" * 64
COUNTED = 4
"""Max queues of an overview in these tests."""


class Counted(InterposedStore):
    """Counts calls of a store's methods."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.calls: Counter[str] = Counter()
        for owner in ("Store", *CONTRACTS):
            for method in vars(getattr(storage, owner)).values():
                if inspect.isfunction(method) and not method.__name__.startswith("_"):
                    self.before(method, partial(self._count, method.__name__))

    def _count(self, name: str) -> None:
        self.calls[name] += 1


@pytest.fixture
def prefix(store: Store) -> str:
    """Returns the prefix of this test's queue names; a key is limited to these."""
    return fresh_name()


@pytest.fixture
def cost(store: Store, prefix: str) -> Iterator[Callable[[str], Counter[str]]]:
    """Counts the calls that a part of an application's pages makes the second time."""
    counted = Counted(store)
    if not bridge.run(store.applications.has_application("costs")):
        bridge.run(store.applications.create_application("costs"))
    bridge.run(store.applications.add_key("costs", digest_of(KEY)))
    browser = Browser(make_app(counted.store, includes=[make_console(list)]))
    assert browser.log_in(KEY).status == 303

    def count(path: str) -> Counter[str]:
        for _ in range(2):
            counted.calls.clear()
            address, _, query = path.partition("?")
            assert browser.get_part(f"/console/a/costs/{address}", query=query).status == 200
        return counted.calls

    with replace_in(overview, overview.MAX_QUEUES, COUNTED), replace_in(overview, overview.COUNT_TIMEOUT, 300.0):
        yield count
    stop_all()


def test_an_overview_costs_the_same_with_more_queues(
    store: Store, prefix: str, cost: Callable[[str], Counter[str]]
) -> None:
    """With four times as many queues and messages an overview makes as many calls, at most fifteen per queue."""
    costs = []
    for begin in (0, COUNTED):
        for number in range(begin, 4 * begin + COUNTED):
            queue = make_queue(store, f"{prefix}{number:03}", application="costs")
            bridge.run(store.messages.append(queue, [new_message("x") for _ in range(20)]))
        costs.append(cost("_overview"))
    assert costs[0].total() <= 15 * COUNTED + 30, costs[0]
    assert costs[1].total() <= costs[0].total(), costs
    assert costs[1]["list_queues"] <= 2


def test_a_page_of_queues_that_is_not_counted_reads_no_messages(
    store: Store, prefix: str, cost: Callable[[str], Counter[str]]
) -> None:
    """The list of queues makes one call, for their rows, and reads no messages."""
    for number in range(20):
        bridge.run(store.catalogue.create_queue("costs", f"{prefix}{number:03}", QueueSpec(partitions=1)))
    calls = cost("_queues")
    assert calls["list_queues"] == 1
    assert not {"read", "inspect", "read_log", "lag", "fetch"} & calls.keys(), calls

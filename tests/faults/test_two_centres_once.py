"""Idempotency keys and names while two data centres are cut off from each other: one message, in both."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.messages.posts import Draft
from queuey.model.errors import ClaimsRefused, KeyInUse, StoreUnavailable
from queuey.model.messages import NewMessage, PostKey, PostResult, Queue, Slice
from queuey.storage import Store, bridge
from queuey.storage.cassandra import CassandraStore
from tests.blocking import BlockingNames, blocking
from tests.contract.samples import run_call
from tests.faults.centres import NAMES, Centres
from tests.faults.test_two_centres import PATIENCE, CentreStores, D, W, make_queue, stores_on
from tests.waiting import until

pytestmark = pytest.mark.slow

T = TypeVar("T")
KEYS = 24


@pytest.fixture
def stores(centres_keyspace: str, centres: Centres) -> Iterator[list[CassandraStore]]:
    with stores_on(centres_keyspace) as centre_stores:
        yield open_stores(centre_stores)


def open_stores(centre_stores: CentreStores) -> list[CassandraStore]:
    return [centre_stores.open(CassandraStore, name) for name in NAMES]


def retry_a_while(call: Callable[[], T]) -> T:
    limit = time.monotonic() + 2 * PATIENCE
    while True:
        try:
            return call()
        except (StoreUnavailable, KeyInUse):
            assert time.monotonic() < limit, "the data centres do not find each other"
            time.sleep(0.2)


def shown(store: Store, queue: Queue) -> list[str]:
    [page] = bridge.run(store.messages.read(queue, [Slice(1)]))
    return sorted(str(message.body) for message in page.messages)


def cut_twice(centres: Centres, begun: Callable[[], bool]) -> None:
    """Cuts the link for longer than a post may take, and once more briefly, each time once ``begun`` is true."""
    for seconds in (2 * W, 0.3):
        until(begun)
        centres.link.cut()
        time.sleep(seconds)  # the duration of the cut
        centres.link.heal()


def test_posts_with_keys(centres: Centres, stores: list[CassandraStore]) -> None:
    """Posts that are repeated in both data centres are stored once, and all are answered with the same ids."""
    queue = make_queue(stores[0], "strong")
    keys = [PostKey(f"{number}", b"content", 3600) for number in range(KEYS)]
    answered: list[dict[str, PostResult]] = [{}, {}]

    def post(number: int) -> None:
        for key in keys if number else reversed(keys):
            item = NewMessage(key.text, 1, 3600, None, 0.0)
            append_once = stores[number].keyed_posts.append_once
            answered[number][key.text] = retry_a_while(partial(run_call, append_once, queue, [item], key))
            time.sleep(0.1)  # spreads the posts over the time of the cuts

    with ThreadPoolExecutor(2) as pool:
        posting = [pool.submit(post, number) for number in range(2)]
        cut_twice(centres, lambda: all(answered))
        for future in posting:
            future.result(3 * PATIENCE)
    east, west = answered
    assert {key: result.locations for key, result in east.items()} == {
        key: result.locations for key, result in west.items()
    }
    assert not [key for key, result in east.items() if not (result.replayed or west[key].replayed)]
    expected = sorted(key.text for key in keys)
    for store in stores:
        until(lambda store=store: shown(store, queue) == expected)  # type: ignore[misc]
    time.sleep(D)  # nothing must appear later
    assert [shown(store, queue) for store in stores] == [expected, expected]


@pytest.mark.parametrize("serial", ["SERIAL", "LOCAL_SERIAL"])
def test_keys_while_cut_off(centres: Centres, centres_keyspace: str, serial: str) -> None:
    """While the data centres are cut off, neither accepts or stores a post with a key, even at ``LOCAL_SERIAL``."""
    with stores_on(centres_keyspace) as centre_stores:
        check_keys_while_cut_off(
            centres, [centre_stores.open(CassandraStore, name, catalogue_serial=serial) for name in NAMES]
        )


def check_keys_while_cut_off(centres: Centres, stores: list[CassandraStore]) -> None:
    queue = make_queue(stores[0], "strong")
    item, key = NewMessage("x", 1, 3600, None, 0.0), PostKey("key", b"content", 3600)
    centres.link.cut()
    for store in stores:
        with pytest.raises(StoreUnavailable):
            bridge.run(store.keyed_posts.append_once(queue, [item], key))
    centres.link.heal()
    first, second = (
        retry_a_while(partial(run_call, store.keyed_posts.append_once, queue, [item], key)) for store in stores
    )
    assert (second.locations, second.replayed) == (first.locations, True)
    for store in stores:
        until(lambda store=store: shown(store, queue) == ["x"])  # type: ignore[misc]


Way = tuple[Service, QueueAccess]


def test_names(centres: Centres, stores: list[CassandraStore]) -> None:
    """A name that both data centres change has one value, in both; at ``strong`` it is refused."""
    queue = make_queue(stores[0], "very_strong")
    ways = [enter(store, queue) for store in stores]
    ended = threading.Event()
    done: Counter[int] = Counter()

    def write(number: int) -> None:
        service, access = ways[number]
        while not ended.is_set():
            retry_a_while(lambda: BlockingNames(service).replace(access, "n", Draft(f"{number}:{done[number] + 1}")))
            done[number] += 1

    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write, number) for number in range(2)]
        cut_twice(centres, lambda: all(done[number] for number in range(2)))
        before = sum(done.values())
        until(lambda: sum(done.values()) > before + 2)
        ended.set()
        for future in writing:
            future.result(3 * PATIENCE)
    values = [retry_a_while(partial(body_of, way)) for way in ways]
    assert values[0] == values[1]
    assert values[0] in {f"{number}:{count}" for number, count in done.items()}
    for store in stores:
        until(lambda store=store: shown(store, queue) == [values[0]])  # type: ignore[misc]
    (east, here), (west, there) = ways
    [claimed] = retry_a_while(lambda: blocking(east.claims).claim(here, limit=9, ttl=600))
    assert claimed.message.body == values[0]
    retry_a_while(lambda: blocking(east.claims).acknowledge(here, [claimed.receipt]))
    assert body_of(ways[1]) is None
    assert retry_a_while(lambda: BlockingNames(west).create(there, "n", Draft("again"))).stored

    with pytest.raises(ClaimsRefused, match="very_strong"):
        BlockingNames(west).replace(enter(stores[1], make_queue(stores[1], "strong"))[1], "n", Draft("x"))


def enter(store: Store, queue: Queue) -> Way:
    service = Service(store)
    return service, service.queues.access_unchecked(queue)


def body_of(way: Way) -> str | None:
    service, access = way
    message = BlockingNames(service).fetch(access, "n")
    return None if message is None else str(message.body)

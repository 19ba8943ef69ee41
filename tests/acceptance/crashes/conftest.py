"""Services on one store, of either kind, that can be killed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack
from pathlib import Path

import pytest

from queuey.client import RetryPolicy
from queuey.storage import Store, cassandra, sqlite
from queuey.storage.cassandra.timing import SOON, changed
from queuey.web.credentials.application_keys import digest_of
from tests.servers import keyspaces
from tests.servers.served import Served

APP, KEY = "acme", "f" * 64
PATIENT = RetryPolicy(rounds=1000, base=0.05, cap=0.5, retry_after_cap=1, deadline=300, cool_down=0.1)
"""Goes on until the service is back."""
W = 1
"""Seconds after which a post that broke off is carried out anew on Cassandra."""

Start = Callable[[int], Served]


@pytest.fixture(params=["sqlite", pytest.param("cassandra", marks=pytest.mark.slow)])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Starts a service on a port; all share a store."""
    options: list[str] = []
    store: Store
    if request.param == "cassandra":
        url = request.getfixturevalue("contract_keyspace")
        keyspaces.empty(url)
        keyspaces.go_by(url, changed(SOON, list(SOON.levels), {"deadline": float(W)}))
        options = ["--store", url]
        store = cassandra.open_store(url)
    else:
        store = sqlite.open_store(tmp_path / "data")
    store.create_application(APP)
    store.add_key(APP, digest_of(KEY))
    store.close()
    yield lambda port: Served(tmp_path, options, port=port)
    if options:
        keyspaces.go_by(options[-1], SOON)


def kill_often(
    stack: ExitStack,
    start: Start,
    running: dict[int, Served],
    calls: Iterable[Callable[[threading.Event], None]],
    answered: Sized,
    *,
    kills: int,
    rng: random.Random,
) -> None:
    """Kills services in turn while callers are at work; a killed one is started again.

    Args:
        stack: Ends services.
        start: Starts one on a port.
        running: Those that run, by port.
        calls: What callers do, each in a thread, until the event is set.
        answered: Grows with each answer; five come before each kill.
        kills: How many.
        rng: Chooses the moments.
    """
    ended, failures = threading.Event(), list[BaseException]()

    def guarded(call: Callable[[threading.Event], None]) -> None:
        try:
            call(ended)
        except BaseException as error:
            failures.append(error)
            raise

    ports, threads = list(running), [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for number in range(kills):
        before = len(answered)
        while len(answered) < before + 5 and not failures:
            time.sleep(0.01)
        time.sleep(rng.random() * 0.1)  # the moment of the kill is the input
        port = ports[number % len(ports)]
        running[port].kill()
        running[port] = stack.enter_context(start(port))
    ended.set()
    for thread in threads:
        thread.join()
    assert failures == []

"""Services on one store, of either kind, that can be killed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from queuey.access.credentials.readers import digest_of
from queuey.client import Client, RetryPolicy
from queuey.storage import Store, bridge, cassandra, sqlite
from queuey.storage.cassandra.cluster.timing import ONE_CENTRE_TIMING, change_values
from tests.harness.history import running as threads
from tests.servers import keyspaces
from tests.servers.served import Served, free_port
from tests.waiting import until

APP, KEY = "acme", "f" * 64
PATIENT_RETRY = RetryPolicy(base=0.05, cap=0.5, retry_after_cap=1, deadline=300, cool_down=0.1)
"""Retries until the service is back."""
W = 1
"""Seconds after which an interrupted post is repeated on Cassandra."""
ANSWERED_SECONDS = 300.0
"""Seconds in which callers get five answers, also on Cassandra and a busy machine."""

Start = Callable[[int], Served]


def kills_of(few: int, many: int) -> pytest.MarkDecorator:
    """Runs a test with few kills at known moments; in the slow tests with many, at new moments each time."""
    long = pytest.param(many, random.randrange(1 << 30), marks=pytest.mark.slow, id="many")
    return pytest.mark.parametrize(("kills", "seed"), [pytest.param(few, 1, id="few"), long])


def make_account(store: Store) -> None:
    bridge.run(store.applications.create_application(APP))
    bridge.run(store.applications.add_key(APP, digest_of(KEY)))


@pytest.fixture(params=["sqlite", pytest.param("cassandra", marks=pytest.mark.slow)])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Starts services on each kind of store; restores the timing of a keyspace at the end."""
    options: list[str] = []
    store: Store
    if request.param == "cassandra":
        url = request.getfixturevalue("contract_keyspace")
        keyspaces.empty(url)
        keyspaces.set_timing(
            url, change_values(ONE_CENTRE_TIMING, list(ONE_CENTRE_TIMING.levels), {"deadline": float(W)})
        )
        options = ["--store", url]
        store = cassandra.open_store(url)
    else:
        store = sqlite.open_store(tmp_path / "data")
    make_account(store)
    store.close()
    yield lambda port: Served(tmp_path, options, port=port)
    if options:
        keyspaces.set_timing(options[-1], ONE_CENTRE_TIMING)


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
        running: Running services by port.
        calls: What callers do, each in a thread, until the event is set.
        answered: Grows with each answer; five are awaited before each kill.
        kills: Number of kills.
        rng: Chooses the moments.
    """
    with threads(calls) as failures:
        for port in (list(running) * kills)[:kills]:
            enough = len(answered) + 5
            until(lambda enough=enough: bool(failures) or len(answered) >= enough, ANSWERED_SECONDS)  # type: ignore[misc]
            time.sleep(rng.random() * 0.1)  # the moment of the kill is the input
            running[port].kill()
            running[port] = stack.enter_context(start(port))


class Services(NamedTuple):
    """Services on one store, which ``kill_often`` kills."""

    urls: list[str]
    client: Client
    running: dict[int, Served]
    kill_often: Callable[..., None]


@contextmanager
def serving(start: Start, count: int = 2) -> Iterator[Services]:
    with ExitStack() as stack:
        running = {port: stack.enter_context(start(port)) for port in [free_port() for _ in range(count)]}
        urls = [f"http://127.0.0.1:{port}" for port in running]
        client = stack.enter_context(Client(urls, key=KEY, application=APP, retry=PATIENT_RETRY, timeout=30))
        yield Services(urls, client, running, partial(kill_often, stack, start, running))

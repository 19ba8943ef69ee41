"""The simulated node of the contract suite: its skipped time, and which thread may prepare statements."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.storage import Store, bridge
from queuey.storage.cassandra.driver import Encoded, Request, Rows, Statement
from queuey.storage.cassandra.message_codec import INSERT
from queuey.storage.cassandra.options import CassandraOptions
from tests.backends import APP, PROMPT, ROW_AGE, SimulatedLocation
from tests.contract.samples import append_bodies, bodies_in_partition, eventually, make_queue, new_message, start_append
from tests.replacing import replace
from tests.sim.cassandra.one_node.in_process import (
    TARGET,
    InProcessCluster,
    InProcessDriver,
    SkippingTime,
    make_cluster,
)

SECOND = 10**9
READ = Statement("SELECT number FROM migrations WHERE singleton = 0")
OTHER = Statement("SELECT name FROM migrations WHERE singleton = 0")


def test_time_goes_on_only_where_that_is_safe() -> None:
    """Time skips forward only, and only if that is safe; both clocks skip."""
    time = SkippingTime()
    boot, wall = time.boottime(), time.wall()
    time.skip_to(wall + 100 * SECOND, lambda: False)
    time.skip_to(wall - 100 * SECOND, lambda: True)
    assert time.wall() < wall + 90 * SECOND
    time.skip_to(wall + 100 * SECOND, lambda: True)
    assert time.wall() >= wall + 100 * SECOND
    assert time.boottime() >= boot + 90 * SECOND


def test_nobody_reads_the_time_while_it_is_decided() -> None:
    """A thread that reads the time during the decision about a skip gets it after the skip, so no id is in between."""
    time = SkippingTime()
    target = time.wall() + 100 * SECOND
    times: list[int] = []
    reader = threading.Thread(target=lambda: times.append(time.wall()))

    def safe() -> bool:
        reader.start()
        reader.join(0.2)
        return not times

    time.skip_to(target, safe)
    reader.join(10)
    assert times[0] >= target


def test_a_write_on_its_way_keeps_the_read_delay() -> None:
    """The delay is skipped before a read, unless a message is being written, which would come too late then."""
    held: list[tuple[Any, ...]] = []
    ask = InProcessCluster.ask

    def hold(
        cluster: InProcessCluster,
        request: Request | Encoded,
        end: Callable[[Rows | None, StoreUnavailable | None], None],
    ) -> None:
        if request.statement in INSERT:
            held.append((cluster, request, end))
        else:
            ask(cluster, request, end)

    store = SimulatedLocation().open()
    try:
        bridge.run(store.applications.create_application(APP))
        queue = make_queue(store, read_delay=None, consistency=PROMPT)
        append_bodies(store, queue, "a")
        with replace(InProcessCluster.ask, hold):
            answer = start_append(store, queue, [new_message("b")])
            assert eventually(lambda: bool(held))
            assert bodies_in_partition(store, queue) == []
        ask(*held.pop())
        assert len(answer.result(60)) == 1
        assert bodies_in_partition(store, queue) == ["a", "b"]
    finally:
        store.close()


def test_changes_of_queues_wait_for_old_rows_without_waiting() -> None:
    """A purge skips the max age of rows (C) instead of waiting for it."""
    store = SimulatedLocation().open()
    try:
        bridge.run(store.applications.create_application(APP))
        queue = make_queue(store)
        ahead = _ahead(store)
        bridge.run(store.catalogue.purge_queue(queue))
        assert _ahead(store) - ahead >= ROW_AGE * 0.9
    finally:
        store.close()


def _ahead(store: Store) -> float:
    return bridge.run(store.ledger.now()) / ids.TICKS_PER_SECOND - ids.now_ticks() / ids.TICKS_PER_SECOND


def test_the_thread_of_answers_prepares_nothing() -> None:
    """Unprepared statements are refused in the thread that brings answers, as by the real driver."""
    driver = InProcessDriver(TARGET, CassandraOptions(), cluster=make_cluster())
    errors: list[StoreUnavailable | None] = []
    ended = threading.Event()

    def told(_rows: Rows | None, error: StoreUnavailable | None) -> None:
        errors.append(error)
        ended.set()

    driver.send(Request(READ), lambda _rows, _error: driver.send(Request(OTHER), told))
    assert ended.wait(10)
    driver.prepare([OTHER])
    ended.clear()
    driver.send(Request(READ), lambda _rows, _error: driver.send(Request(OTHER), told))
    assert ended.wait(10)
    driver.close()
    assert isinstance(errors[0], StoreUnavailable)
    assert errors[1] is None

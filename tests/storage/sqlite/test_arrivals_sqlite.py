"""Wake-ups by polls of the embedded store, which find messages of other processes, when polls fail."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import apsw
import pytest

from queuey.storage import bridge, partition_watches
from queuey.storage.sqlite import SqliteOptions, open_store
from tests.backends import APP
from tests.contract.samples import append_bodies, make_queue
from tests.replacing import replace_in
from tests.storage.sqlite.counted import prepared_connections
from tests.waiting import PATIENCE_SECONDS, until

OPTIONS = SqliteOptions(sweep_interval=None)


@pytest.mark.parametrize("failing", ["FROM clock", "json_each", "FROM queues"])
def test_a_poll_that_fails_forgets_nothing(tmp_path: Path, failing: str) -> None:
    """Whichever statement of the polls fails for a while, all watches with news of that time are woken after it."""
    broken, failures = threading.Event(), list[str]()

    def trace(_cursor: object, sql: str, _bindings: object) -> bool:
        if broken.is_set() and failing in sql and threading.current_thread().name == "queuey-watch":
            failures.append(sql)
            raise apsw.IOError("disk I/O error")
        return True

    def prepare(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    with (
        replace_in(partition_watches, partition_watches.POLL_INTERVAL, 0.05),
        prepared_connections(prepare),
        contextlib.closing(open_store(tmp_path, options=OPTIONS)) as store,
        contextlib.closing(open_store(tmp_path, options=OPTIONS)) as other,
    ):
        bridge.run(store.applications.create_application(APP))
        prompt, purged, calm = (make_queue(store) for _ in range(3))
        delayed = make_queue(store, read_delay=0.1)
        woken = {queue: threading.Event() for queue in (prompt, delayed, purged, calm)}
        for queue, event in woken.items():
            store.messages.watch(queue, 1, event.set)
        append_bodies(other, delayed, "wakes each watch that is polled for the first time")
        assert woken[delayed].wait(PATIENCE_SECONDS)
        time.sleep(3 * partition_watches.POLL_INTERVAL)
        for event in woken.values():
            event.clear()
        broken.set()
        bridge.run(other.catalogue.purge_queue(bridge.run(other.catalogue.queue(APP, purged.name))))
        append_bodies(other, make_queue(other), "in a queue that nobody watches")
        until(lambda: failures)
        append_bodies(other, prompt, "of another process")
        append_bodies(store, delayed, "shown after its delay")
        before = len(failures)
        until(lambda: len(failures) > before + 2)
        broken.clear()
        expected = {prompt, delayed, purged}
        until(lambda: {queue for queue, event in woken.items() if event.is_set()} >= expected)
        assert not woken[calm].is_set()

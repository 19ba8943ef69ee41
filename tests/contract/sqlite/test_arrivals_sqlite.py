"""Wake-ups by polls of the embedded store, which find messages of other processes, when polls fail."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queuey.errors import StoreBusy
from queuey.storage import bridge, watching
from queuey.storage.sqlite import SqliteOptions, arrivals, open_store, row_codec
from queuey.storage.sqlite.arrivals import CommittedArrivals
from queuey.storage.sqlite.database import Database
from tests.backends import APP
from tests.contract.samples import append_bodies, make_queue
from tests.replacing import replace, replace_in
from tests.waiting import PATIENCE_SECONDS, until

OPTIONS = SqliteOptions(sweep_interval=None)


@pytest.mark.parametrize("step", ["clock", "messages", "queues"])
def test_a_poll_that_fails_forgets_nothing(tmp_path: Path, step: str) -> None:
    """Whichever step of the polls fails for a while, all watches with news of that time are woken after it."""
    poll, failures = CommittedArrivals._poll, list[BaseException]()

    def counted(*arguments: Any) -> None:  # noqa: ANN401 - as the method has them
        try:
            poll(*arguments)
        except BaseException as error:
            failures.append(error)
            raise

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as the function has them
            if threading.current_thread().name == "queuey-watch":
                raise StoreBusy("broken")
            return function(*arguments, **named)

        return call

    broken = {
        "clock": partial(replace, Database.read_clock, failing(Database.read_clock)),
        "messages": partial(replace_in, arrivals, arrivals._SELECT_RANGES_WITH_MESSAGES, "SELECT broken"),
        "queues": partial(replace_in, row_codec, row_codec.verify, failing(row_codec.verify)),
    }
    with (
        replace(CommittedArrivals._poll, counted),
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
        time.sleep(3 * watching.POLL_INTERVAL)
        for event in woken.values():
            event.clear()
        with broken[step]():
            bridge.run(other.catalogue.purge_queue(bridge.run(other.catalogue.queue(APP, purged.name))))
            append_bodies(other, make_queue(other), "in a queue that nobody watches")
            until(lambda: failures)
            append_bodies(other, prompt, "of another process")
            append_bodies(store, delayed, "shown after its delay")
            before = len(failures)
            until(lambda: len(failures) > before + 2)
        expected = {prompt, delayed, purged}
        until(lambda: {queue for queue, event in woken.items() if event.is_set()} >= expected)
        assert not woken[calm].is_set()

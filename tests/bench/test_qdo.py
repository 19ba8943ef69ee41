"""The measures of Qdo: workers are started and counted rightly."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness import Void
from bench.load import traffic
from bench.measures.qdo import rebalance
from bench.member import Told
from bench.started import service, workers
from bench.started.processes import Process
from queuey.messages import NewMessage, QueueSpec

COUNT = 2500


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """The service with a queue of two partitions, the second of them empty."""
    directory = tmp_path_factory.mktemp("served")
    store = service.prepare(directory, ())
    queue = store.create_queue(service.APPLICATION, workers.QUEUE, QueueSpec(partitions=2))[0]
    for text in ("a", "b", "c"):
        store.append(queue, [NewMessage(text, 2, service.THREE_DAYS)])
    service.fill(store, queue, traffic.bodies(10), COUNT)
    store.close()
    with service.serve(directory) as server:
        yield server


def wait_until_handled(one: Process, count: int) -> None:
    """Waits until a worker has handled so many messages; it may give no count while the machine is very busy."""
    deadline = time.monotonic() + 60
    found = None
    while found != count:
        assert one.child.poll() is None, one.log_tail()
        assert time.monotonic() < deadline, f"{found} messages handled of {count}"
        with contextlib.suppress(Void):
            found = workers.counts([one])[0]


def test_a_worker_is_started_behind_its_gate(served: Process, tmp_path: Path) -> None:
    """It serves its metrics before the gate is open, and joins and handles everything afterwards."""
    with workers.worker(served, tmp_path, handler="plain") as one:
        wait_until_handled(one, 0)
        (tmp_path / workers.OPEN).touch()
        wait_until_handled(one, COUNT + 3)


def test_the_longest_wait_is_that_of_all_members() -> None:
    """It is looked for over all partitions that stayed, whoever has them."""
    found = [Told(["1", "2"], 0.0, {"1": 0.1, "2": 0.4}), Told(["3"], 0.0, {"3": 0.2})]
    assert rebalance.longest(found) == 0.4


def test_a_change_in_which_no_partition_stayed_is_void() -> None:
    """As on a machine so busy that no member was given two messages meanwhile."""
    with pytest.raises(Void, match="no partition stayed"):
        rebalance.longest([Told(["1"], 0.0, {})])

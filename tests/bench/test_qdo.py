"""The measures of Qdo: that the baselines do the work they stand for, and that workers are counted rightly."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.baselines import batch_reads, three_calls
from bench.harness import Void
from bench.load import traffic
from bench.measures.qdo import rebalance
from bench.member import Told
from bench.started import service, workers
from bench.started.processes import Process
from queuey.client import EARLIEST, Client
from queuey.messages import NewMessage, QueueSpec

COUNT = 2500


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """The service with a queue of two partitions, the second of them empty."""
    directory = tmp_path_factory.mktemp("served")
    store = service.prepare(directory, (three_calls.STATUS,))
    queue = store.create_queue(service.APPLICATION, workers.QUEUE, QueueSpec(partitions=2))[0]
    for text in ("a", "b", "c"):
        store.append(queue, [NewMessage(text, 2, service.THREE_DAYS)])
    service.fill(store, queue, traffic.bodies(10), COUNT)
    store.close()
    with service.serve(directory) as server:
        yield server


def address(server: Process) -> str:
    """Returns the application's address."""
    return f"http://127.0.0.1:{server.port}/v1/{service.APPLICATION}"


@pytest.mark.parametrize("variant", batch_reads.VARIANTS)
def test_the_bare_loops_read_every_message_once(served: Process, variant: str) -> None:
    """They end with exactly as many messages as there are, in pages as large as the service gives."""
    meter = batch_reads.Meter(1000)
    batch_reads.VARIANTS[variant](address(served), workers.QUEUE, COUNT + 3, meter)
    assert meter.count == COUNT + 3
    rate, cpu = meter.result()
    assert rate > 0
    assert cpu > 0


def test_the_loop_of_three_calls_handles_one_message_after_another(served: Process) -> None:
    """Each step goes on by one message, and what was processed last lies in its status message."""
    with Client(address(served), key=traffic.KEY) as client:
        first = [message.id for message in client.read(workers.QUEUE, partitions=1, limit=5).messages]
        loop = three_calls.Loop(served.port, workers.QUEUE)
        seen = []
        for _ in first:
            assert loop.step()
            seen.append(loop.processed)
        loop.close()
        assert seen == first
        (status,) = client.read(three_calls.STATUS, since=EARLIEST, delay=False).messages
    assert json.loads(status.body)["processed"] == first[-1]


def handled(one: Process) -> int | None:
    """Returns how many messages a worker has handled; None: it does not say, as on a machine that is very busy."""
    with contextlib.suppress(Void):
        return workers.counts([one])[0]
    return None


def test_a_worker_is_started_behind_its_gate(served: Process, tmp_path: Path) -> None:
    """It serves its metrics before the gate is open, and joins and handles everything afterwards."""
    with workers.worker(served, tmp_path, handler="plain") as one:
        while (count := handled(one)) is None:
            assert one.child.poll() is None, one.log_tail()
        assert count == 0
        (tmp_path / workers.OPEN).touch()
        while handled(one) != COUNT + 3:
            assert one.child.poll() is None, one.log_tail()


def test_the_longest_wait_is_that_of_all_members() -> None:
    """It is looked for over all partitions that stayed, whoever has them."""
    found = [Told(["1", "2"], 0.0, {"1": 0.1, "2": 0.4}), Told(["3"], 0.0, {"3": 0.2})]
    assert rebalance.longest(found) == 0.4


def test_a_change_in_which_no_partition_stayed_is_void() -> None:
    """As on a machine so busy that no member was given two messages meanwhile."""
    with pytest.raises(Void, match="no partition stayed"):
        rebalance.longest([Told(["1"], 0.0, {})])

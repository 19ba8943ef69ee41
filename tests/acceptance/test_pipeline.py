"""A pipe as a real process: killed with SIGKILL, ended by SIGTERM, and exact in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from queuey.model.messages import NewMessage, QueueSpec, Slice
from queuey.storage import Store, bridge, sqlite
from tests.servers.processes import ending
from tests.servers.served import environment
from tests.waiting import until

APP = "acme"
COUNT = 3000
PARTITIONS = 2


def start_pipeline(place: Path, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    command = ["pipeline", "pipe", "orders", "--to", "copies", "--create", "--from", "earliest", "--lead", "5s"]
    command += ["--sql", "SELECT upper(string(value)) AS value, partition FROM messages", "--every", "0s"]
    command += ["--data", str(place / "data"), "--checkpoint", str(place / "checkpoint"), "--master", "local[2,4]"]
    return ending(
        subprocess.Popen(
            [sys.executable, "-m", "queuey", *command, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(TMPDIR=str(place)),
            start_new_session=True,
        )
    )


def wait_for_batches(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "micro-batches" in line:
            return
    pytest.fail("".join(lines))


def bodies(store: Store, name: str) -> Counter[tuple[int, str]]:
    """Returns the bodies in a queue once all of its messages can be scanned, ids ahead of the clock included."""
    queue = bridge.run(store.catalogue.queue(APP, name, fresh=True))
    ends = (info.newest for info in bridge.run(store.messages.inspect(queue))[1])
    latest = max(end for end in ends if end is not None)
    until(lambda: bridge.run(store.bulk.horizon(queue)) > latest[0], every=0.05)
    parts = (Slice(number, limit=1000) for number in range(1, PARTITIONS + 1))
    return Counter(
        (one.partition, str(one.body))
        for part in parts
        for page in bridge.iterate(store.bulk.scan(queue, part))
        for one in page
    )


@pytest.mark.slow
def test_a_pipe_outlives_its_process(tmp_path: Path) -> None:
    """Killed in the middle, then ended by SIGTERM with code 0, then run to the end: every message is there once."""
    store = sqlite.open_store(tmp_path / "data")
    bridge.run(store.applications.create_application(APP))
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "orders", QueueSpec(partitions=PARTITIONS)))
    items = [NewMessage(f"order {number}", number % PARTITIONS + 1, 86_400) for number in range(COUNT)]
    for first in range(0, COUNT, 1000):
        bridge.run(store.messages.append(queue, items[first : first + 1000]))
    with start_pipeline(tmp_path, "--most", "200") as process:
        wait_for_batches(process)
        os.killpg(process.pid, signal.SIGKILL)
    with start_pipeline(tmp_path, "--most", "200") as process:
        wait_for_batches(process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "messages were read in" in out
    with start_pipeline(tmp_path, "--once") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert bodies(store, "copies") == Counter((item.partition, str(item.body).upper()) for item in items)
    store.close()

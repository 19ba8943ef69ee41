"""Whatever bytes a client sends and however it leaves: it is answered in HTTP or disconnected; others are served."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from queuey.client import QueueExists
from tests.acceptance.fuzzing.playing import Defect, play
from tests.acceptance.fuzzing.streams import Stream, streams
from tests.servers.served import Served
from tests.waiting import until

CONCURRENT_CONNECTIONS = 80
"""Concurrent connections."""
MAX_GROWTH_BYTES = 8 << 20
"""Max growth of the process in the second half of a run: heaps vary between runs, and caches fill up."""
QUEUE = "fuzzed"
OPTIONS = ["--max-wait", "0.05", "--max-body", "4096", "--max-batch-bytes", "200000"]
BODY_SECONDS = 120.0
"""Seconds that the service waits for a body, as documented."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A service of the test's own, which logs no defect."""
    with Served(tmp_path, OPTIONS) as running:
        with running.client() as client:
            client.create_queue("sound")
        yield running
        assert "Traceback" not in running.output


def count_sockets(served: Served) -> int:
    count = 0
    for pid in served.workers():
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                count += entry.readlink().name.startswith("socket:")
            except FileNotFoundError:
                continue  # closed meanwhile
    return count


def assert_served(served: Served) -> None:
    """Checks that a valid caller can post and read, and creates what the streams may have deleted."""
    with served.client() as client:
        with suppress(QueueExists):
            client.create_queue(QUEUE)
        client.send("sound", "x")
        assert client.read("sound", limit=1).messages


def resident_bytes(served: Served) -> int:
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in (served.process.pid, *served.workers())]
    return sum(int(line.split()[1]) * 1024 for text in statuses for line in text.splitlines() if "VmRSS" in line)


def fuzz(served: Served, seed: int, batches: int) -> Counter[int]:
    """Plays this many batches of a seed, and checks after each that others are served.

    In the end it checks that the memory and the number of sockets have not grown.
    """
    statuses: Counter[int] = Counter()
    before, warm = count_sockets(served), 0
    source = streams(seed, QUEUE, served.profile.key or "")
    for number in range(batches):
        assert_served(served)
        try:
            statuses += asyncio.run(play(list(itertools.islice(source, CONCURRENT_CONNECTIONS)), served.port))
        except Defect as error:
            raise AssertionError(f"Seed {seed}, batch {number}: {error}") from error
        if number == batches // 2:
            warm = resident_bytes(served)
    assert_served(served)
    assert resident_bytes(served) < warm + MAX_GROWTH_BYTES
    until(lambda: count_sockets(served) <= before)
    return statuses


@pytest.mark.parametrize(
    ("seed", "batches"), [(1, 15), pytest.param(Random().randrange(1 << 32), 250, id="many", marks=pytest.mark.slow)]
)
def test_malformed_requests(served: Served, seed: int, batches: int) -> None:
    """A thousand connections with broken requests: nothing undocumented, no 500, no hang, no growth."""
    statuses = fuzz(served, seed, batches)
    assert statuses.keys() >= {200, 201, 400, 401, 403, 404, 413, 431}, "the streams do not get far any more"


@pytest.mark.slow
def test_clients_that_stay(served: Served) -> None:
    """A connection whose client neither sends nor closes ends by the service's own deadlines, whatever it carried."""
    kept = [Stream(pieces, "stay") for pieces, _ in itertools.islice(streams(2, QUEUE, served.profile.key or ""), 400)]
    assert_served(served)
    asyncio.run(play(kept, served.port, BODY_SECONDS + 30))
    assert_served(served)

"""One scrape of a service with several workers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import urllib.request
from collections import Counter
from functools import partial
from http.client import HTTPException
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from queuey.web.ops import ANSWER_TIMEOUT, HEARTBEAT_INTERVAL
from tests.acceptance.test_serve_stop import worker_pids
from tests.servers.served import Served
from tests.waiting import until


def sum_samples(served: Served) -> Counter[str]:
    sums: Counter[str] = Counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=30) as answer:
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                sums[sample.name] += int(sample.value)
    return sums


def scrape_both_workers(served: Served) -> Counter[str]:
    """Returns a scrape of both workers; a worker that pauses for two seconds is missing in a scrape."""
    sums = Counter[str]()

    def shows_both() -> bool:
        sums.clear()
        sums.update(sum_samples(served))
        return sums["queuey_worker_up"] == 2

    until(shows_both)
    return sums


def has_counted(served: Served, received: int) -> bool:
    return scrape_both_workers(served)["queuey_messages_received_total"] == received


def count_workers(served: Served) -> int:
    """Returns the number of workers in a scrape; 0 if the connected one is dying."""
    with contextlib.suppress(OSError, HTTPException):
        return sum_samples(served)["queuey_worker_up"]
    return 0


def test_every_scrape_shows_all_workers(tmp_path: Path) -> None:
    """Whichever worker answers, the scrape has what each of them has taken in, also after one has been replaced."""
    with Served(tmp_path, ["--workers", "2"]) as served:
        until(lambda: count_workers(served) == 2)
        with served.client() as client:
            client.create_queue("w")
        for number in range(1, 13):
            with served.client() as client:
                client.send("w", "x")
            until(partial(has_counted, served, number))
        victim = worker_pids(served)[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: victim not in worker_pids(served))
        # Until then a scrape may show what was collected before.
        time.sleep(ANSWER_TIMEOUT + HEARTBEAT_INTERVAL)
        until(lambda: count_workers(served) == 2)
        assert served.end(signal.SIGTERM) == 0

"""Counts all operations, in the order in which they are printed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from bench.call_counts import over_http
from bench.started.processes import run_module

MAX_SECONDS = 120.0
"""Timeout of a counting process."""


def count_all(directory: Path) -> dict[str, Counter[str]]:
    key = over_http.prepare_store(directory)
    with over_http.serve_profiled(directory) as served:
        counted = over_http.count_requests(served)
        workers = {
            groups: run_module("bench.call_counts.worker", served.port, over_http.POSTS, groups, seconds=MAX_SECONDS)
            for groups in ("service", "zookeeper")
        }
    settings = over_http.write_sqs_settings(directory)
    with over_http.serve_profiled(directory, "--config", str(settings)) as served:
        counted["SQS receive"] = over_http.count_receive(served, key)
    with over_http.serve_profiled(directory, "--console", "true") as served:
        counted["console page"] = over_http.count_page(served)
    counted["fetch to commit"] = Counter(json.loads(workers["service"]))
    counted["fetch to commit, ZooKeeper"] = Counter(json.loads(workers["zookeeper"]))
    cassandra = json.loads(run_module("bench.call_counts.simulated_cassandra", seconds=MAX_SECONDS))
    return counted | {f"Cassandra {name}": Counter(calls) for name, calls in cassandra.items()}

"""The three-node cluster as a store for experiments: its options, its nodes as victims, and how its copies agree."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from queuey.storage.cassandra.driver import Driver, Statement
from queuey.storage.cassandra.options import parse_url
from queuey.storage.cassandra.placement import NAMES
from tests import keyspaces
from tests.faults.experiment import Store
from tests.faults.nemesis import Span, Victim
from tests.faults.wire import Account
from tests.served import environment

if TYPE_CHECKING:
    from deploy.local import CassandraCluster

APPLICATION = "faults"
COPIES = 3


def store_on(cluster: CassandraCluster, span: Span, *, difference: float, row_age: float) -> Store:
    """Makes a keyspace with a copy on each node.

    Args:
        cluster: Three nodes.
        span: W and D of ``strong``.
        difference: S in seconds.
        row_age: C in seconds.
    """
    url = keyspaces.make(cluster, COPIES)
    options = (
        *("--store", url),
        *("--cassandra-strong-deadline", str(span.deadline), "--cassandra-strong-delay", str(span.delay)),
        *("--cassandra-clock-difference", str(difference), "--cassandra-row-age", str(row_age)),
    )
    nodes: dict[str, Victim] = {f"node-{number}": node for number, node in enumerate(cluster.nodes, 1)}
    return Store(options, span, _account(url), nodes, cluster.wait_until_settled, lambda: converge(url))


def _account(url: str) -> Account:
    """Makes an application and its key, as an operator does."""
    command = [sys.executable, "-m", "queuey", "app", "create", APPLICATION, "--store", url, "--json"]
    made = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return Account(APPLICATION, json.loads(made.stdout)["secret"])


def converge(url: str) -> None:
    """Reads everything from all copies, which makes them agree, as a repair would."""
    driver = Driver(parse_url(url), keyspaces.OPTIONS)
    try:
        assert driver.ready(60), driver.problem()
        for name in NAMES:
            table = f"messages_{name}"
            keys = driver.run(Statement(f"SELECT DISTINCT qid, part, bucket FROM {table}"), consistency="ALL")
            for key in keys:
                every = Statement(f"SELECT id FROM {table} WHERE qid = ? AND part = ? AND bucket = ?")
                driver.run(every, key, consistency="ALL")
    finally:
        driver.close()

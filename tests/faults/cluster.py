"""The three-node cluster as a store for experiments: its options, its nodes as victims, and how its copies agree."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from queuey.storage.cassandra.bucketing import NAMES
from queuey.storage.cassandra.driver import Driver, Statement
from queuey.storage.cassandra.options import parse_url
from tests.faults.centres import NAMES as CENTRES
from tests.faults.centres import Centres
from tests.faults.webs import Span, Store, Victim
from tests.faults.wire import Account
from tests.harness.proxy import Proxy
from tests.servers import keyspaces
from tests.servers.served import environment

if TYPE_CHECKING:
    from deploy.local import CassandraCluster

APPLICATION = "faults"


def store_on(cluster: CassandraCluster, url: str, span: Span, *, difference: float, row_age: float) -> Store:
    """Makes a store of a keyspace with a copy on each node, and empties that.

    Args:
        cluster: Three nodes.
        url: Of a keyspace there.
        span: W and D of ``strong``.
        difference: S in seconds.
        row_age: C in seconds.
    """
    keyspaces.empty(url)
    keyspaces.close()  # nobody else is connected while nodes are killed
    keyspaces.go_by(url, span.timing(difference, row_age))
    options = "--store", url
    nodes: dict[str, Victim | Proxy] = {f"node-{number}": node for number, node in enumerate(cluster.nodes, 1)}
    return Store(span, options, _account(url), nodes, cluster.wait_until_settled, lambda: converge(url))


def store_between(centres: Centres, url: str, span: Span, *, difference: float, row_age: float) -> Store:
    """Makes a store whose web processes are in a data centre each; their link is a victim.

    Args:
        centres: The data centres.
        url: Of a keyspace there.
        span: W and D of ``strong``.
        difference: S in seconds.
        row_age: C in seconds.
    """
    keyspaces.go_by(url, span.timing(difference, row_age), CENTRES[0])
    options = (
        *("--store", url),
        # As in deploy/settings/several-data-centres.toml.
        *("--consistency-catalogue", "write=EACH_QUORUM,read=LOCAL_QUORUM"),
    )
    local = {f"web-{number}": ("--cassandra-local-dc", name) for number, name in enumerate(CENTRES, 1)}
    return Store(
        span,
        options,
        _account(url, QUEUEY_CASSANDRA_LOCAL_DC=CENTRES[0]),
        {"link": centres.link},
        centres.cluster.wait_until_settled,
        lambda: converge(url, CENTRES[0]),
        local,
    )


def _account(url: str, **variables: str) -> Account:
    """Makes an application and its key, as an operator does; a further key where an earlier test has made it."""
    for action in ("create", "key-add"):
        command = [sys.executable, "-m", "queuey", "app", action, APPLICATION, "--store", url, "--json"]
        made = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, check=False)
        if made.returncode == 0:
            break
    assert made.returncode == 0, made.stderr
    return Account(APPLICATION, json.loads(made.stdout)["secret"])


def converge(url: str, local_dc: str | None = None) -> None:
    """Reads everything from all copies, which makes them agree, as a repair would."""
    driver = Driver(parse_url(url), replace(keyspaces.OPTIONS, local_dc=local_dc))
    try:
        assert driver.ready(60), driver.problem()
        for name in NAMES:
            table = f"messages_{name}"
            keys = driver.run(Statement(f"SELECT DISTINCT qid, partition, bucket FROM {table}"), consistency="ALL")
            for key in keys:
                every = Statement(f"SELECT id FROM {table} WHERE qid = ? AND partition = ? AND bucket = ?")
                driver.run(every, key, consistency="ALL")
    finally:
        driver.close()

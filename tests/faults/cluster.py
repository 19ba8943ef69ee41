"""The three-node cluster as the store of a run: its options, its nodes as victims, and how to make its copies agree."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from deploy.local import CassandraCluster, CassandraOptions, start_cassandra
from deploy.local.addresses import claim
from deploy.local.cassandra import NATIVE_PORT, list_ports
from queuey.storage.cassandra.cluster import Driver, Statement
from queuey.storage.cassandra.cluster.options import parse_url
from queuey.storage.cassandra.time.bucketing import NAMES
from tests.faults.centres import NAMES as CENTRES
from tests.faults.centres import Centres
from tests.faults.webs import Span, Store, Victim
from tests.faults.wire import Account
from tests.harness.proxy import Proxy
from tests.servers import keyspaces
from tests.servers.served import environment

APPLICATION = "faults"


@dataclass(frozen=True)
class ProxiedNodes:
    """Nodes whose clients connect through proxies.

    Attributes:
        cluster: The nodes.
        proxies: A proxy for each node, ``proxy-1`` and so on.
    """

    cluster: CassandraCluster
    proxies: Mapping[str, Proxy]


@contextmanager
def start_proxied(nodes: int) -> Iterator[ProxiedNodes]:
    """Starts nodes behind proxies. The nodes announce only the addresses of the proxies to clients."""
    block = claim([*list_ports(nodes), *((nodes + index, NATIVE_PORT) for index in range(nodes))])
    port = block.port(NATIVE_PORT)
    behind = {block.address(index): block.address(nodes + index) for index in range(nodes)}

    def listen_behind(text: str) -> str:
        settings = json.loads(text)
        address = settings["rpc_address"]
        return json.dumps(settings | {"rpc_address": behind[address], "broadcast_rpc_address": address})

    options = CassandraOptions(commitlog_sync="group", rewrite=listen_behind)
    with contextlib.ExitStack() as opened:
        proxies = {
            f"proxy-{number}": opened.enter_context(contextlib.closing(Proxy({(near, port): (far, port)})))
            for number, (near, far) in enumerate(behind.items(), 1)
        }
        yield ProxiedNodes(opened.enter_context(start_cassandra(nodes, options, block=block)), proxies)


def prepare_store_on(
    cluster: CassandraCluster,
    url: str,
    span: Span,
    *,
    difference: float,
    row_age: float,
    proxies: Mapping[str, Proxy] = {},
) -> Store:
    """Returns the store of a run on a keyspace with a copy on each node, which is emptied and gets the timing.

    Args:
        cluster: Three nodes.
        url: The keyspace.
        span: W and D of ``strong``.
        difference: S in seconds.
        row_age: C in seconds.
        proxies: Proxies between the web processes and the nodes, by name.
    """
    keyspaces.empty(url)
    keyspaces.close()  # no other client is connected while nodes are killed
    keyspaces.set_timing(url, span.make_timing(difference, row_age))
    nodes: dict[str, Victim | Proxy] = {f"node-{number}": node for number, node in enumerate(cluster.nodes, 1)}
    return Store(
        span,
        options=("--store", url),
        account=_create_account(url),
        nodes={**nodes, **proxies},
        settled=cluster.wait_until_settled,
        converged=lambda: converge(url),
    )


def prepare_store_between(centres: Centres, url: str, span: Span, *, difference: float, row_age: float) -> Store:
    """Returns the store of a run with a web process in each data centre. Their link is a victim.

    Args:
        centres: The data centres.
        url: The keyspace.
        span: W and D of ``strong``.
        difference: S in seconds.
        row_age: C in seconds.
    """
    keyspaces.set_timing(url, span.make_timing(difference, row_age), CENTRES[0])
    options = (
        *("--store", url),
        # As in deploy/settings/several-data-centres.toml.
        *("--consistency-catalogue", "write=EACH_QUORUM,read=LOCAL_QUORUM"),
    )
    local = {f"web-{number}": ("--cassandra-local-dc", name) for number, name in enumerate(CENTRES, 1)}
    return Store(
        span,
        options,
        _create_account(url, QUEUEY_CASSANDRA_LOCAL_DC=CENTRES[0]),
        {"link": centres.link},
        centres.cluster.wait_until_settled,
        lambda: converge(url, CENTRES[0]),
        local,
    )


def _create_account(url: str, **variables: str) -> Account:
    """Creates an application and its key, or only a key if the application exists; returns the account."""
    for action in ("create", "key-add"):
        command = [sys.executable, "-m", "queuey", "app", action, APPLICATION, "--store", url, "--json"]
        completed = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, check=False)
        if completed.returncode == 0:
            break
    assert completed.returncode == 0, completed.stderr
    return Account(APPLICATION, json.loads(completed.stdout)["secret"])


def converge(url: str, local_dc: str | None = None) -> None:
    """Reads all messages at ALL, which makes their copies agree, as a repair would."""
    driver = Driver(parse_url(url), replace(keyspaces.OPTIONS, local_dc=local_dc))
    try:
        assert driver.ready(60), driver.problem()
        for name in NAMES:
            table = f"messages_{name}"
            keys = driver.run(Statement(f"SELECT DISTINCT qid, partition, bucket FROM {table}"), consistency="ALL")
            for key in keys:
                statement = Statement(f"SELECT id FROM {table} WHERE qid = ? AND partition = ? AND bucket = ?")
                driver.run(statement, key, consistency="ALL")
    finally:
        driver.close()

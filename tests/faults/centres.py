"""Cassandra in two data centres on this machine, with a link between them that can be cut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deploy.local import CassandraCluster, CassandraOptions, Site, StartFailed, start_cassandra
from deploy.local.addresses import claim
from deploy.local.cassandra import STORAGE_PORT, list_ports
from tests.harness.proxy import Proxy
from tests.servers import keyspaces

NAMES = ("east", "west")

SETTINGS = {
    # Writes that a data centre missed are kept as hints, and sent soon after the link is healed.
    "hinted_handoff_enabled": True,
    "hints_flush_period": "500ms",
    "write_request_timeout": "1000ms",
}


@dataclass(frozen=True)
class Centres:
    """Two data centres.

    Attributes:
        cluster: The nodes. The first half is in the first data centre.
        link: Carries the traffic between nodes of different data centres, and nothing else.
        each: Number of nodes in each data centre.
    """

    cluster: CassandraCluster
    link: Proxy
    each: int

    @property
    def copies(self) -> str:
        return ", ".join(f"'{name}': {self.each}" for name in NAMES)


@contextmanager
def start_centres(each: int) -> Iterator[Centres]:
    """Starts two data centres.

    A node listens at an address of its own and announces another one, at which the link listens. Within a data centre
    nodes use the former (``prefer_local``). A failed start is repeated once.

    Args:
        each: Number of nodes in each data centre, one or two.
    """
    with contextlib.ExitStack() as opened:
        try:
            centres = opened.enter_context(_start_nodes_and_link(each))
        except StartFailed:  # nodes started at the same time sometimes do not find each other
            centres = opened.enter_context(_start_nodes_and_link(each))
        yield centres


@contextmanager
def _start_nodes_and_link(each: int) -> Iterator[Centres]:
    nodes = 2 * each
    behind = [(nodes + index, STORAGE_PORT) for index in range(nodes)]
    block = claim([*list_ports(nodes), *behind])
    port = block.port(STORAGE_PORT)
    sites = [Site(NAMES[index // each], block.address(nodes + index)) for index in range(nodes)]
    ways = {(site.known_as, port): (block.address(index), port) for index, site in enumerate(sites)}
    options = CassandraOptions(commitlog_sync="group", settings=SETTINGS)
    with contextlib.closing(Proxy(ways)) as link, start_cassandra(nodes, options, block=block, sites=sites) as cluster:
        yield Centres(cluster, link, each)


def make_keyspace_on(centres: Centres) -> str:
    replication = ",".join(f"{name}={centres.each}" for name in NAMES)
    return keyspaces.make(centres.cluster, replication, local_dc=NAMES[0])

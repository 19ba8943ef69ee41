"""Real servers on this machine without Docker and without installed Java: Cassandra and ZooKeeper as plain JVMs.

>>> from deploy.local import CassandraOptions, start_cassandra
>>> with start_cassandra(3, CassandraOptions(commitlog_sync="batch")) as cluster:
...     cluster.contact_points, cluster.port
...     cluster.nodes[1].kill()
...     cluster.nodes[1].start()

``python -m deploy.local`` runs them in the foreground (``make cluster``). Nothing here knows Queuey.
"""

from __future__ import annotations

from deploy.local.cassandra import CassandraCluster, CassandraNode, CassandraOptions, Site, Tls, start_cassandra
from deploy.local.cluster import running
from deploy.local.errors import CannotFetch, NoFreeAddress, NoJava, ServersError, StartFailed
from deploy.local.zookeeper import ZooKeeperEnsemble, ZooKeeperNode, ZooKeeperOptions, start_zookeeper

__all__ = [
    "CannotFetch",
    "CassandraCluster",
    "CassandraNode",
    "CassandraOptions",
    "NoFreeAddress",
    "NoJava",
    "ServersError",
    "Site",
    "StartFailed",
    "Tls",
    "ZooKeeperEnsemble",
    "ZooKeeperNode",
    "ZooKeeperOptions",
    "running",
    "start_cassandra",
    "start_zookeeper",
]

"""Coordination by ZooKeeper, for members on any number of machines.

Importing this package requires kazoo (the extra ``zookeeper``). It translates kazoo's errors and values: ``link`` is a
session on the event loop, ``requests`` are what it sends, and ``handler`` makes kazoo use that loop.
"""

from __future__ import annotations

from qdo.coordination.zookeeper.connection_options import ConnectionOptions, DigestLogin, SaslLogin, TlsOptions
from qdo.coordination.zookeeper.connection_options import parse as parse_url
from qdo.coordination.zookeeper.link import ZooKeeperLink

__all__ = ["ConnectionOptions", "DigestLogin", "SaslLogin", "TlsOptions", "ZooKeeperLink", "parse_url"]

"""Trees of ZooKeeper: members on any number of machines.

Importing this needs kazoo (the extra ``zookeeper``).
"""

from __future__ import annotations

from qdo.coordination.tree import Connect
from qdo.coordination.zookeeper.connection_options import ConnectionOptions, DigestLogin, SaslLogin, TlsOptions
from qdo.coordination.zookeeper.connection_options import parse as parse_url
from qdo.coordination.zookeeper.driver import ZooKeeperLink

__all__ = ["ConnectionOptions", "DigestLogin", "SaslLogin", "TlsOptions", "connector", "parse_url"]


def connector(access: ConnectionOptions) -> Connect:
    """Returns a maker of links.

    Raises:
        InvalidArgument: TLS cannot be set up.
    """
    context = None if access.tls is None else access.tls.context()
    return lambda outlast: ZooKeeperLink(access, context, outlast)

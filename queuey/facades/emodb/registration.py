"""Registers the service in ZooKeeper for clients that discover servers by Ostrich, such as EmoDB's.

A registration is an ephemeral node ``/ostrich/<service>/<host>:<port>`` whose JSON has the addresses of the service and
of its health check. The parent process creates it when the service accepts connections, and again if it disappears. It
ends with the process.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

ROOT = "/ostrich"
SERVICES = {"emodb-queue-1": "/queue/1", "emodb-dedupq-1": "/dedupq/1"}
"""EmoDB's services and their paths. The registered name has the cluster in front."""
SESSION_TIMEOUT = 10.0
MAX_RETRY_DELAY = 5.0
CHECK_INTERVAL = 10.0
"""Interval between checks that the nodes still exist, in seconds."""

log = logging.getLogger(__name__)


def make_emodb_nodes(cluster: str, host: str, port: int, *, scheme: str = "http") -> dict[str, bytes]:
    """Returns paths and data of the nodes that EmoDB's Java client reads.

    Args:
        cluster: Cluster that the clients are configured for.
        port: Port of the service; the health check is one port above.
    """
    url_host = f"[{host}]" if ":" in host else host
    address, nodes = f"{url_host}:{port}", {}
    for service, path in SERVICES.items():
        payload = {
            "serviceUrl": f"{scheme}://{address}{path}",
            "adminUrl": f"http://{url_host}:{port + 1}",
            "extensions": {"proxy": False},
        }
        node = {
            "registration-time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}.000Z",
            "name": f"{cluster}-{service}" if cluster else service,
            "id": address,
            "payload": msgspec.json.encode(payload).decode(),
        }
        nodes[f"{ROOT}/{node['name']}/{address}"] = msgspec.json.encode(node)
    return nodes


class Registration:
    """Keeps nodes in ZooKeeper until it is closed or the process ends. Without ZooKeeper the service runs on.

    Args:
        servers: ``host:port,host:port/chroot``.
        nodes: Data of the nodes by their paths below the chroot.
    """

    def __init__(self, servers: str, nodes: dict[str, bytes]) -> None:
        self._nodes = nodes
        self._due = threading.Event()
        self._closed = False
        self._client: Any = KazooClient(
            servers,
            timeout=SESSION_TIMEOUT,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=MAX_RETRY_DELAY),
            logger=log.getChild("kazoo"),
        )
        self._client.add_listener(self._on_state_change)

    def start(self) -> None:
        self._client.start_async()
        threading.Thread(target=self._keep_nodes, name="queuey-registration", daemon=True).start()

    def close(self) -> None:
        """Signals the thread to end, without waiting for it, and removes the nodes by ending the session."""
        self._closed = True
        self._due.set()
        self._client.stop()
        self._client.close()

    def _on_state_change(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._due.set()

    def _keep_nodes(self) -> None:
        while not self._closed:
            self._due.wait(CHECK_INTERVAL)
            self._due.clear()
            if self._client.connected and not self._closed:
                try:
                    for path, data in self._nodes.items():
                        self._ensure_own_node(path, data)
                except KazooException as error:
                    log.warning("The service could not be registered in ZooKeeper, and will try again: %s.", error)

    def _ensure_own_node(self, path: str, data: bytes) -> None:
        stat = self._client.exists(path)
        if stat is not None and stat.ephemeralOwner == self._client.client_id[0]:
            return
        if stat is not None:
            # An earlier process at this address created it, and its session has not ended yet.
            with suppress(NoNodeError):
                self._client.delete(path)
        self._client.create(path, data, ephemeral=True, makepath=True)
        log.info("Registered in ZooKeeper: %s", path)

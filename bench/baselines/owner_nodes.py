"""A bare loop that creates owners' nodes in ZooKeeper, one after another.

``python -m bench.baselines.owner_nodes HOSTS COUNT`` prints the seconds that the nodes took. They are ephemeral
and hold an owner's name, and lie as deep as those that members make; the connection and the nodes above them are there
before the clock starts.
"""

from __future__ import annotations

import sys
import time
import uuid

from kazoo.client import KazooClient

WARM = 50
"""Nodes that are created before, unmeasured."""


def create(client: KazooClient, parent: str, count: int) -> float:
    """Creates so many nodes; returns the seconds."""
    client.ensure_path(parent)
    owner = b"host.example-12345-0a1b2c"
    begun = time.perf_counter()
    for number in range(count):
        client.create(f"{parent}/{number}", owner, ephemeral=True)
    return time.perf_counter() - begun


def main(hosts: str, count: int) -> None:
    """Connects, creates, and prints."""
    client = KazooClient(hosts)
    client.start()
    top = f"/bare-{uuid.uuid4().hex}/groups/bench/owners/127.0.0.1%3A5000/queuey"
    create(client, f"{top}/warm", WARM)
    print(create(client, f"{top}/q1", count))
    client.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

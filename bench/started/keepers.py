"""ZooKeeper servers for a measure: fresh, and their data on a real disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bench.harness import Bench, Skip, Void
from deploy.local import CannotFetch, NoJava, ServersError, ZooKeeperEnsemble, start_zookeeper

START_SECONDS = 120.0


@contextlib.contextmanager
def zookeeper(bench: Bench, count: int = 1) -> Iterator[ZooKeeperEnsemble]:
    """Runs one or three servers whose data lies beside that of the other sides, and ends them with the block.

    Raises:
        Skip: There is no Java here, or no way to ZooKeeper's jars.
        Void: A server did not start.
    """
    try:
        ensemble = start_zookeeper(count, keep=bench.fresh("zookeeper"), seconds=START_SECONDS)
    except (CannotFetch, NoJava) as error:
        raise Skip(f"needs ZooKeeper: {error}") from error
    except ServersError as error:
        raise Void(str(error)) from error
    with ensemble:
        yield ensemble

"""New ZooKeeper servers for a measure, with their data on a real disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bench.harness import Bench, Skip, Void
from deploy.local import CannotFetch, NoJava, ServersError, ZooKeeperEnsemble, start_zookeeper

START_SECONDS = 120.0


@contextlib.contextmanager
def zookeeper(bench: Bench, count: int = 1) -> Iterator[ZooKeeperEnsemble]:
    """Runs one or three servers, with their data next to that of the other sides; stops them after the block.

    Raises:
        Skip: This machine has no Java, or ZooKeeper's jars could not be fetched.
        Void: A server did not start.
    """
    try:
        ensemble = start_zookeeper(count, keep=bench.new_directory("zookeeper"), seconds=START_SECONDS)
    except (CannotFetch, NoJava) as error:
        raise Skip(f"needs ZooKeeper: {error}") from error
    except ServersError as error:
        raise Void(str(error)) from error
    with ensemble:
        yield ensemble

"""Runs Cassandra and ZooKeeper in the foreground until Ctrl-C or SIGTERM: ``python -m deploy.local``."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from deploy.local import addresses, cassandra, jars, zookeeper
from deploy.local.addresses import Block
from deploy.local.cassandra import CassandraCluster, CassandraOptions
from deploy.local.errors import ServersError
from deploy.local.server import Server
from deploy.local.zookeeper import ZooKeeperEnsemble

LOOK_SECONDS = 1.0
FEW = range(4)


def make_parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    made.add_argument("--cassandra", type=int, choices=FEW, default=3, help="how many nodes")
    made.add_argument("--zookeeper", type=int, choices=FEW, default=3, help="how many servers")
    made.add_argument("--heap", default="1g", help="of each Cassandra node")
    made.add_argument("--commitlog-sync", choices=["periodic", "group", "batch"], default="group")
    made.add_argument("--keep", type=Path, metavar="DIR", help="keep data and logs there, and go on with what is there")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Starts the servers, prints their addresses, and runs them until Ctrl-C or SIGTERM.

    Returns the exit code: 0 after an interruption, or 1 if a server did not start.
    """
    wanted = make_parser().parse_args(arguments)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # both, as a shell makes what it runs in the background ignore Ctrl-C
        signal.signal(number, signal.default_int_handler)
    try:
        with contextlib.ExitStack() as opened:
            clusters = []
            for cluster in start(wanted, claim(wanted)):
                opened.enter_context(cluster)
                clusters.append(cluster)
                print(describe_cluster(cluster), flush=True)
            print("Running. Ctrl-C stops all.", flush=True)
            watch([node for cluster in clusters for node in cluster.nodes])
    except ServersError as failure:
        print(f"{type(failure).__name__}: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.", flush=True)
    return 0


def claim(wanted: argparse.Namespace) -> Block:
    """Takes 127.0.0.1 and the next addresses if the usual ports are free there, else other loopback addresses.

    Raises:
        NoFreeAddress: No block of addresses is free.
    """
    ports = cassandra.list_ports(wanted.cassandra) + zookeeper.list_ports(wanted.zookeeper)
    return addresses.claim(ports, chain([(0, 0)], addresses.list_candidates()))


def start(wanted: argparse.Namespace, block: Block) -> Iterator[CassandraCluster | ZooKeeperEnsemble]:
    """Starts ZooKeeper, then Cassandra, with the requested numbers of servers; yields each cluster when it serves.

    Raises:
        ServersError: A server did not start.
    """
    keep: Path | None = wanted.keep
    if wanted.zookeeper:
        print(f"Starting ZooKeeper {jars.ZOOKEEPER_VERSION}", flush=True)
        yield zookeeper.start_zookeeper(wanted.zookeeper, keep=keep and keep / "zookeeper", block=block)
    if wanted.cassandra:
        print(f"Starting Cassandra {jars.CASSANDRA_VERSION}", flush=True)
        setup = CassandraOptions(heap=wanted.heap, commitlog_sync=wanted.commitlog_sync, quick_start=False)
        directory = keep and keep / "cassandra"
        yield cassandra.start_cassandra(wanted.cassandra, setup, keep=directory, block=block)


def describe_cluster(cluster: CassandraCluster | ZooKeeperEnsemble) -> str:
    if isinstance(cluster, CassandraCluster):
        where = f"{','.join(cluster.contact_points)}:{cluster.port}"
        uses = [f"for Queuey: --store cassandra://{where}/queuey", f"for tests:  QUEUEY_TEST_CASSANDRA={where}"]
    else:
        uses = [f"for tests:  QUEUEY_TEST_ZOOKEEPER={cluster.connect_string}"]
    lines = [f"Up in {cluster.start_seconds:.1f} s; data and logs in {cluster.home.path}"]
    lines += [f"  {node.name:28} port {node.port}, process {node.pid}" for node in cluster.nodes]
    return "\n".join([*lines, *(f"  {use}" for use in uses)])


def watch(servers: Sequence[Server]) -> None:
    """Waits forever; prints when a server has ended, with the end of its log."""
    running = set(servers)
    while True:
        for server in sorted(running, key=lambda server: server.name):
            if not server.alive:
                running.remove(server)
                print(f"{server.name} has ended.\n{server.log_tail(20)}", file=sys.stderr, flush=True)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())

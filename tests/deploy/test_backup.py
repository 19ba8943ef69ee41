"""The page's backup and restore of a Cassandra cluster, typed as on the page, on real nodes."""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from deploy.local import CassandraCluster, CassandraNode, start_cassandra
from deploy.local import CassandraOptions as NodeOptions
from deploy.local.cassandra import NODETOOL
from queuey.model.messages import NewMessage, QueueSpec
from queuey.storage import bridge, cassandra
from queuey.storage.cassandra.admin import migrations
from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget
from tests.servers.processes import run_well

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations-cassandra.md"
OPTIONS = CassandraOptions(row_age=0.1, timeout=20.0, reap_interval=None)


def commands() -> tuple[str, str]:
    section = PAGE.read_text().partition("\n## Backup and restore\n")[2].partition("\n## ")[0]
    backup, restore = re.findall(r"^ *```sh\n(.*?)^ *```$", section, re.DOTALL | re.MULTILINE)
    return backup, restore


def keyspace(cluster: CassandraCluster) -> DataCentreTarget:
    target = DataCentreTarget(tuple(cluster.contact_points), "queuey", cluster.port)
    migrations.migrate(target, OPTIONS, replication="datacenter1=1")
    return target


def run_as_operator(node: CassandraNode, directory: Path, text: str) -> str:
    """Runs commands of the page with its paths mapped into the directory; returns their output, fails if they do."""
    tool = directory / "nodetool"
    nodetool = shlex.join([*node._java(), f"-Duser.home={directory}", NODETOOL, "-p", str(node._place.jmx_port)])
    tool.write_text(f'#!/bin/sh\nexec {nodetool} "$@"\n')
    tool.chmod(0o755)
    places = {
        "/var/lib/cassandra/data": node.directory / "data",
        "/backup": directory,
        "/restore": directory / "restore",
    }
    for place, actual in places.items():
        text = re.sub(rf"(?<![\w/]){place}\b", str(actual), text)
    return run_well(["/bin/sh", "-euc", text], env={"PATH": f"{directory}:/usr/bin:/bin"})


@pytest.mark.slow
def test_restore_into_a_new_cluster(servers: ExitStack, tmp_path: Path) -> None:
    """A new cluster, restored from the snapshot, has the queues, messages and keys from before it, none from after."""
    backup, restore = commands()
    with start_cassandra(1, NodeOptions(nodetool=True)) as old:
        target = keyspace(old)
        with closing(cassandra.open_store(target.url, options=OPTIONS)) as store:
            bridge.run(store.applications.create_application("app"))
            bridge.run(store.applications.add_key("app", b"k" * 32))
            queue, _ = bridge.run(store.catalogue.create_queue("app", "kept", QueueSpec(partitions=2)))
            before = bridge.run(
                store.messages.append(
                    queue, [NewMessage(body=str(number), partition=1, ttl=3600) for number in range(500)]
                )
            )
            tag = run_as_operator(old.nodes[0], tmp_path, f'{backup}\nprintf "%s" "$TAG"').rpartition("\n")[2]
            after = bridge.run(store.messages.append(queue, [NewMessage(body="late", partition=2, ttl=3600)]))
            bridge.run(store.catalogue.create_queue("app", "late", QueueSpec()))
        assert "There are no snapshots" in old.nodes[0].nodetool("listsnapshots")
        tokens = re.findall(r"^Token\s+: (-?\d+)$", (tmp_path / f"{tag}.tokens").read_text(), re.MULTILINE)
    with start_cassandra(1, NodeOptions(nodetool=True)) as new:
        target = keyspace(new)
        assert sorted(tokens) == sorted(
            re.findall(r"^Token\s+: (-?\d+)$", new.nodes[0].nodetool("info", "--tokens"), re.MULTILINE)
        )
        run_as_operator(new.nodes[0], tmp_path, f"TAG={tag}\n{restore}")
        with closing(cassandra.open_store(target.url, options=OPTIONS)) as store:
            assert [messages.name for messages in bridge.run(store.catalogue.list_queues("app"))] == ["kept"]
            assert bridge.run(store.applications.find_key(b"k" * 32)) is not None
            queue = bridge.run(store.catalogue.queue("app", "kept"))
            messages = bridge.run(store.messages.fetch(queue, [(1, place) for place in before]))
            assert [message.body for message in messages] == [str(number) for number in range(500)]
            assert bridge.run(store.messages.fetch(queue, [(2, place) for place in after])) == []
            (newer,) = bridge.run(store.messages.append(queue, [NewMessage(body="new", partition=1, ttl=3600)]))
            assert newer > max(*before, *after)

"""All servers and programs of a run: both stores, each with two services and a group of workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deploy.local import start_cassandra, start_zookeeper
from deploy.local.server import Server
from queuey.access.credentials.readers import digest_of
from queuey.app.opening import retry_until_available
from queuey.storage import Store, bridge, cassandra, sqlite
from queuey.storage.cassandra.admin.migrations import migrate
from queuey.storage.cassandra.cluster.options import parse_url
from tests.soak.programs import GroupWorker, Program, Service
from tests.soak.traffic import APPLICATION, GROUP, KEY, QUEUE, TTL, Traffic
from tests.soak.usage import ALLOWANCES, JAVA_ALLOWANCES, Allowances

PARTITIONS = 4
KEYSPACE = "soak"
FATES = ("killed", "lasting")
"""The fates of the two services and two workers at each store. Slow growth shows in those that are never killed."""
CONNECT_SECONDS = 120.0


class Landscape(NamedTuple):
    """The running programs.

    Attributes:
        traffic: The traffic at each store.
        services, workers: Those that are killed.
        lasting: Services and workers that are never killed.
        nodes: The nodes of Cassandra.
        servers: The servers of ZooKeeper.
    """

    traffic: list[Traffic]
    services: list[Service]
    workers: list[GroupWorker]
    lasting: list[Program]
    nodes: Sequence[Server]
    servers: Sequence[Server]

    @property
    def programs(self) -> list[Program]:
        return [*self.services, *self.workers, *self.lasting]

    @property
    def watched(self) -> dict[Program | Server, Allowances]:
        return dict.fromkeys(self.programs, ALLOWANCES) | dict.fromkeys((*self.nodes, *self.servers), JAVA_ALLOWANCES)


@contextlib.contextmanager
def running(data: Path, logs: Path, count: int, seed: int) -> Iterator[Landscape]:
    """Starts everything for a block, with the application and the queue in both stores, and ends it afterwards.

    Args:
        data: Directory of the stores.
        logs: Directory for output of programs, and records of Qdo workers.
        count: Number of Cassandra nodes.
        seed: Seeds the traffic.
    """
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(start_cassandra(count, keep=data / "cassandra"))
        ensemble = stack.enter_context(start_zookeeper(keep=data / "zookeeper"))
        url = f"cassandra://{','.join(nodes.contact_points)}:{nodes.port}/{KEYSPACE}"
        migrate(parse_url(url), cassandra.CassandraOptions(), replication=str(count))
        _furnish(cassandra.open_store(url))
        _furnish(sqlite.open_store(data / "data"))
        options: dict[str, Sequence[str]] = {"sqlite": [], "cassandra": ["--store", url]}
        groups = {"sqlite": {}, "cassandra": {"--coordination": f"zookeeper://{ensemble.connect_string}/soak"}}
        landscape = Landscape([], [], [], [], nodes.nodes, ensemble.nodes)
        for store, chosen in options.items():
            services = [Service(f"{store} {fate} service", data, chosen) for fate in FATES]
            settings = _worker_settings([service.url for service in services], groups[store])
            workers = [GroupWorker(f"{store} {fate} qdo worker", logs, settings) for fate in FATES]
            records = [worker.record for worker in workers]
            traffic = Traffic(store, [service.url for service in services], records, seed)
            for program in services:
                stack.callback(program.kill)
                stack.callback(_keep_output, program, logs)
                program.start()
            with traffic.client() as client:
                client.create_queue(QUEUE, partitions=PARTITIONS, ttl=TTL)
            for worker in workers:
                worker.start()
                stack.callback(worker.kill)
            landscape.traffic.append(traffic)
            landscape.services.append(services[0])
            landscape.workers.append(workers[0])
            landscape.lasting.extend((services[1], workers[1]))
        yield landscape


def _furnish(store: Store) -> None:
    with contextlib.closing(store):
        retry_until_available(lambda: bridge.run(store.applications.application_names()), CONNECT_SECONDS)
        bridge.run(store.applications.create_application(APPLICATION))
        bridge.run(store.applications.add_key(APPLICATION, digest_of(KEY)))


def _worker_settings(urls: Sequence[str], coordination: Mapping[str, str]) -> dict[str, str]:
    return {
        "--url": ",".join(urls),
        "--app": APPLICATION,
        "--key": KEY,
        "--queue": QUEUE,
        "--group": GROUP,
        "--log-level": "warning",
        **coordination,
    }


def _keep_output(service: Service, logs: Path) -> None:
    text = "".join(life.output for life in service.lives)
    (logs / f"{service.name}.log").write_text(text, "utf-8")

"""A group's promises hold while its workers, their coordination and their queues have faults."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.webs import Span
from tests.harness.plans import Plan, Record, long_plan, plans, verify
from tests.qdo.faults.group_run import GroupRun
from tests.qdo.faults.servers.services import ServiceGroups

if TYPE_CHECKING:
    from tests.faults.webs import MakeStore
    from tests.servers.plugin import ZooKeeperEnsemble

SLOTS = ["w1", "w2", "w3", "w4", "w5"]
SERVICE = "cut,grow,join,kill,leave,pause,restart"
CASSANDRA = f"{SERVICE},node-kill,node-pause"
ZOOKEEPER = "cut,expire,grow,hush,join,kill,leader,leave,mute,pause,silence"
SEED = 14870
"""A seed that draws every kind of fault required below for ZooKeeper; 189 does so for the service."""
LEAST = {"events": 16, "join": 3, "leave": 1, "kill": 2, "pause": 1, "cut": 1, "messages": 250}
SERVERS = {"expire": 2, "leader": 1, "hush": 1, "silence": 1}
LONG_LEAST = {"join": 20, "leave": 5, "kill": 10, "pause": 10, "cut": 3}
LONG_LEAST |= {"events": 200, "messages": 10_000, "twice": 50, "lost": 20}
LONG_SERVERS = {"expire": 10, "mute": 1, "leader": 3, "hush": 3, "silence": 3}

SPAN, SESSION = Span(deadline=1.0, delay=2.5), 5.0
"""Timeout in seconds of runs on nodes: a write may take a second."""
MINUTE = 70.0
"""Seconds in which about 55 faults begin."""


def settings(slot: str, worker: str) -> dict[str, object]:
    runs = {"w2": "tasks", "w5": "processes"}.get(slot, "threads")
    return {"runs": runs, "member": slot if slot in {"w1", "w4"} else None, "grace": 1.0}


@plans(
    "groups/service",
    Plan(189, SERVICE, 16.0, LEAST | {"events": 14, "restart": 1}),
    *(long_plan(seed, SERVICE, LONG_LEAST | {"restart": 3}, MINUTE) for seed in (1, 2)),
)
def test_service(tmp_path: Path, record_property: Record, plan: Plan) -> None:
    """A group of the service keeps its promises while the service is stopped, killed and restarted."""
    verify(plan, lambda: GroupRun(tmp_path, ServiceGroups(), settings=settings).run(plan, SLOTS), record_property)


@plans("groups/services", Plan(189, SERVICE, 40.0, LEAST | {"restart": 1}, slow=True))
def test_services(tmp_path: Path, record_property: Record, plan: Plan) -> None:
    """A group keeps its promises on two services that share a SQLite file, while each in turn is stopped and killed."""
    run = GroupRun(tmp_path, ServiceGroups(), settings=settings, webs=2)
    verify(plan, lambda: run.run(plan, SLOTS), record_property)


@plans("groups/processes", Plan(189, SERVICE, 40.0, LEAST | {"restart": 1}, slow=True))
def test_workers_of_one_service(tmp_path: Path, record_property: Record, plan: Plan) -> None:
    """A group keeps its promises while the four processes of a service are stopped and killed one by one."""
    run = GroupRun(tmp_path, ServiceGroups(), settings=settings, workers=4)
    verify(plan, lambda: run.run(plan, SLOTS), record_property)


@plans("groups/cassandra", Plan(1, CASSANDRA, 60.0, LEAST | {"events": 30, "node-kill": 1, "node-pause": 1}, slow=True))
def test_cassandra(tmp_path: Path, record_property: Record, three_nodes: MakeStore, plan: Plan) -> None:
    """A group keeps its promises on three services and three nodes, while services and nodes are stopped and killed."""
    store = three_nodes(SPAN, difference=0.5, row_age=1.0)
    run = GroupRun(tmp_path, ServiceGroups(store, SESSION), store=store, settings=settings, webs=3)
    verify(plan, lambda: run.run(plan, SLOTS), record_property)


@plans(
    "groups/zookeeper",
    Plan(SEED, ZOOKEEPER, 18.0, LEAST | SERVERS, slow=True),
    *(long_plan(seed, ZOOKEEPER, LONG_LEAST | LONG_SERVERS, MINUTE) for seed in (1, 2)),
)
def test_zookeeper(tmp_path: Path, record_property: Record, zookeeper_nodes: ZooKeeperEnsemble, plan: Plan) -> None:
    """A group on three ZooKeeper servers keeps its promises while these are killed and stopped too."""
    from tests.qdo.faults.servers.ensemble import ZooKeeperService  # noqa: PLC0415 - needs the driver

    with contextlib.closing(ZooKeeperService(zookeeper_nodes, apart=SLOTS[1:3])) as service:
        verify(plan, lambda: GroupRun(tmp_path, service, settings=settings).run(plan, SLOTS), record_property)

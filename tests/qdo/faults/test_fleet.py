"""A fleet that processes crash reports, in 20 queues of 8 partitions: in the end each report was processed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.webs import Span, Store
from tests.harness.plans import Plan, Record, plans, verify
from tests.qdo.faults.group_run import SQLITE, GroupRun
from tests.qdo.faults.servers.services import ServiceGroups

if TYPE_CHECKING:
    from tests.faults.webs import MakeStore

QUEUES = {f"crew-{number:02}": 8 for number in range(1, 21)}
SLOTS = [f"w{number}" for number in range(1, 9)]
FAULTS = "cut,join,kill,leave,pause,restart"
NODE_FAULTS = f"{FAULTS},node-kill,node-pause"
SECONDS = 150.0
LEAST = {"failures": 60, "messages": 2_000, "kill": 10, "pause": 10, "restart": 2}


def settings(slot: str, worker: str) -> dict[str, object]:
    """Returns options by which some workers are static members, and all kinds of executors are used.

    Workers are killed by the test, not by their messages, so no message is given up after a kill.
    """
    return {
        "runs": {"w2": "tasks", "w5": "processes"}.get(slot, "threads"),
        "member": slot if slot in {"w1", "w4"} else None,
        "grace": 1.0,
        "attempts": 0,
    }


def check_processing(directory: Path, store: Store, groups: ServiceGroups, plan: Plan, record: Record) -> None:
    run = GroupRun(directory, groups, queues=QUEUES, store=store, settings=settings)
    result = verify(plan, lambda: run.run(plan, SLOTS), record)
    processed = {(each.place, each.id, each.body) for each in result.history.handled}
    reports = {(at.name, at.id, body) for found in result.history.contents.values() for at, body in found.items()}
    assert processed == reports
    assert len({body for _, _, body in reports}) == len(reports) == result.counts["messages"]


@plans("groups/fleet", Plan(1, FAULTS, SECONDS, LEAST, slow=True))
def test_sqlite(tmp_path: Path, record_property: Record, plan: Plan) -> None:
    """Every report is processed while workers are killed and paused, and the service on SQLite too."""
    check_processing(tmp_path, SQLITE, ServiceGroups(), plan, record_property)


@plans("groups/fleet-cassandra", Plan(1, NODE_FAULTS, SECONDS, LEAST | {"node-kill": 1}, slow=True))
def test_cassandra(tmp_path: Path, record_property: Record, three_nodes: MakeStore, plan: Plan) -> None:
    """Every report is processed while workers are killed and paused, and the service and its three nodes too."""
    store = three_nodes(Span(deadline=1.0, delay=2.5), difference=0.5, row_age=1.0)
    check_processing(tmp_path, store, ServiceGroups(store, session_timeout=5.0), plan, record_property)

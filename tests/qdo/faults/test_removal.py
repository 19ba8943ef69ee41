"""A run detects commits that are not fenced, and reports nothing when they are.

The simulator of groups removes the other mechanisms (`tests/sim/groups/test_mutations.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.checking.records import Answered, Asked, Joined
from tests.qdo.faults.group_run import GroupRun
from tests.qdo.faults.servers.services import Service, ServiceGroups

QUEUES = {"crew-a": 3, "crew-b": 3}
STOP_AT = 6


@pytest.mark.parametrize("fenced", [True, False])
def test_a_worker_is_stopped_at_a_commit(tmp_path: Path, service: Service, fenced: bool) -> None:  # noqa: FBT001 - drawn
    """A worker stops just before a commit until another has done all its work: the commit must be refused."""
    if not fenced and isinstance(service, ServiceGroups):
        pytest.skip("the service fences, not its members: tests/sim/service_groups takes that out")

    def settings(slot: str, worker: str) -> dict[str, object]:
        return {"fenced": fenced, "stop_at": STOP_AT if worker == "w1.1" else 0, "rest": 0.02}

    run = GroupRun(tmp_path, service, queues=QUEUES, settings=settings)
    with run.running() as (crew, queues):
        run.load(queues, 100)
        crew.start("w1")
        assert run.until(crew["w1"].is_stopped)
        crew.start("w2")
        run.settle(queues)
        crew["w1"].resume()
        commits = [asked.call for asked in run.seen(Asked) if asked.what == "commit" and asked.worker == "w1.1"]
        stopped = "w1.1", commits[STOP_AT - 1]
        assert run.until(
            lambda: (
                stopped in {(each.worker, each.call) for each in run.seen(Answered)}
                and any(each.life > 1 for each in run.seen(Joined))
            )
        )
        run.finish(crew)
    result = run.judge()
    broken = {violation.rule for violation in result.violations}
    assert broken >= {"fenced", "back"} if not fenced else not broken, result.explain()
    assert any(heard.worker == "w1.1" and heard.event == "lost" for heard in result.history.heard) or not fenced

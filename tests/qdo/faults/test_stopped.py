"""A worker that is stopped at a commit until another has done its work.

The simulator of groups removes the fences of commits, and notices (`tests/sim/groups/test_mutations.py`).
"""

from __future__ import annotations

from pathlib import Path

from tests.harness.checking.records import Answered, Asked, Joined
from tests.qdo.faults.group_run import GroupRun
from tests.qdo.faults.servers.services import Service

QUEUES = {"crew-a": 3, "crew-b": 3}
STOP_AT = 6


def settings(slot: str, worker: str) -> dict[str, object]:
    return {"stop_at": STOP_AT if worker == "w1.1" else 0, "rest": 0.02}


def test_a_worker_is_stopped_at_a_commit(tmp_path: Path, service: Service) -> None:
    """A worker stops just before a commit until another has done all its work: the commit is refused."""
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
    assert not result.violations, result.explain()
    assert any(heard.worker == "w1.1" and heard.event == "lost" for heard in result.history.heard)

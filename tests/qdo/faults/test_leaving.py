"""Workers come and leave without faults."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.harness.checking.history import History, Stay
from tests.harness.checking.records import Handled
from tests.harness.plans import Plan, Record, plans, verify
from tests.qdo.faults.group_run import GroupRun
from tests.qdo.faults.servers.services import Service, ServiceGroups

QUEUES = {"crew-a": 6, "crew-b": 6}
LEAVER = "w4.1"
SESSION = 20.0
"""Session timeout in seconds that survives a busy machine."""
SLOW, QUICK = 0.4, 0.01
"""Seconds that a handler takes, of the leaving worker and of the others."""


def settings(slot: str, worker: str) -> dict[str, object]:
    """Returns options by which the leaving worker has a message in hand for a while."""
    return {"rest": SLOW if worker == LEAVER else QUICK, "runs": "tasks" if slot == "w2" else "threads"}


def test_a_worker_leaves(tmp_path: Path, service: Service) -> None:
    """When a worker leaves, the others' partitions are handled without a break, and the moved ones without a repeat."""
    service.session_timeout = SESSION
    run = GroupRun(tmp_path, service, queues=QUEUES, settings=settings)
    with run.story() as (crew, queues):
        run.start_workers(crew, queues, ["w1", "w2", "w3", "w4"])
        run.load(queues, 400)
        assert run.until(lambda: len({each.place for each in run.seen(Handled)}) == 12)
        with run.posting(queues), run.record_fault("leave", LEAVER):
            crew.leave("w4")
    result = run.judge()
    assert result.violations == [], result.explain()
    assert (result.counts["twice"], result.counts["lost"]) == (0, 0)
    (leave,) = (fault for fault in result.history.faults if fault.kind == "leave")
    staying = _present(result.history, leave.start)
    assert sum(stay.worker == LEAVER for stay in staying) == 3
    for stay in (stay for stay in staying if stay.worker != LEAVER):
        assert stay.end > leave.end, f"{stay.place} was interrupted"
        during = [each for each in stay.handled if leave.start <= each.at <= leave.end]
        assert len(during) > 1 or not _had_unhandled(result.history, stay, leave.end), (
            f"{stay.place} stood still while another worker left"
        )


COMING = Plan(1, "grow,join,leave", 17.5, {"events": 12, "join": 3, "leave": 2, "stays": 30, "messages": 500})


@plans("groups/coming-and-leaving-service", msgspec.structs.replace(COMING, slow=True))
def test_workers_come_and_leave(tmp_path: Path, record_property: Record, plan: Plan) -> None:
    """A group of the service loses and repeats nothing while its workers come and leave."""
    service = ServiceGroups(session_timeout=SESSION)
    run = GroupRun(tmp_path, service)
    result = verify(plan, lambda: run.run(plan, ["w1", "w2", "w3", "w4", "w5"]), record_property)
    assert (result.counts["twice"], result.counts["lost"]) == (0, 0)


def _present(history: History, at: float) -> list[Stay]:
    return [stay for stays in history.stays.values() for stay in stays if stay.start <= at < stay.end]


def _had_unhandled(history: History, stay: Stay, instant: float) -> bool:
    """Returns whether messages from the beginning were still unhandled at an instant.

    If the machine paused between the posts and the leave, all may be handled by then.
    """
    loaded = {each for post in history.posts if post.writer == "load" for each in post.ids}
    return any(each.at > instant and each.id in loaded for each in stay.handled)

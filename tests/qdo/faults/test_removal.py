"""The checker sees when a mechanism is missing on which the promises stand, and sees nothing when it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.checking.history import History
from tests.harness.checking.records import Answered, Asked, Handled, Joined
from tests.harness.checking.rules import Limits
from tests.harness.results import Result
from tests.qdo.faults.group_run import GroupRun, Settings
from tests.qdo.faults.servers.services import Service

Play = Callable[[GroupRun, Service], Result]

QUEUES = {"crew-a": 3, "crew-b": 3}
STOP_AT = 6
MIDDLING = 6.0
"""Seconds of a session of which a member can be suspended for some."""
LONG = 20.0
"""Seconds of a session that something else which keeps the machine busy does not end."""


def stopped_at_a_commit(run: GroupRun, service: Service) -> Result:
    """A worker is stopped in the instant of a commit, until another has done all its work; then it goes on."""
    with run.running() as (crew, queues):
        run.load(queues, 100)
        crew.start("w1")
        assert run.until(crew["w1"].stopped)
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
    return run.judge()


def expired_in_the_middle(run: GroupRun, service: Service) -> Result:
    """A worker's session is ended behind its back while it has seconds of work in hand."""
    with run.story() as (crew, queues):
        run.load(queues, 100)
        crew.start("w1")
        assert run.until(lambda: len(run.seen(Handled)) > 30)
        with run.doing("expire", "w1.1"):
            run.expire("w1.1")
    return run.judge()


def a_short_cut(run: GroupRun, service: Service) -> Result:
    """The coordination service does not answer for a while, but for less than a session."""
    service.session_timeout = MIDDLING
    with run.story() as (crew, queues):
        run.staff(crew, queues, ["w1", "w2"])
        run.load(queues, 600)
        with run.doing("cut"):
            service.deeds["cut"]("", 0.87 * service.session_timeout)
    return run.judge()


def one_comes_and_goes(run: GroupRun, service: Service) -> Result:
    """Three have shared the partitions out when a fourth joins them, and leaves again; no session ends meanwhile."""
    service.session_timeout = LONG
    with run.story() as (crew, queues):
        for slots in (["w1", "w2", "w3"], ["w4"]):
            run.staff(crew, queues, slots)
            run.load(queues, 100)
            threading.Event().wait(Limits().settling)  # beyond that no coming explains a move
        with run.doing("leave", "w4.1"):
            crew.leave("w4")
    return run.judge()


def jobs(play: Play, without: str = "") -> Settings:
    """Says how workers are to be."""

    def settings(slot: str, worker: str) -> dict[str, object]:
        stop_at = STOP_AT if worker == "w1.1" and play is stopped_at_a_commit else 0
        pace = {"rest": 0.04, "slice": 4.0} if play is expired_in_the_middle else {"rest": 0.02}
        return {"without": without, "stop_at": stop_at, **pace}

    return settings


def heard(history: History, event: str) -> set[str]:
    """Returns the workers whose sessions told of something."""
    return {each.worker for each in history.heard if each.event == event}


@pytest.mark.parametrize(
    ("mechanism", "play", "rules"),
    [
        ("fencing", stopped_at_a_commit, [{"fenced"}, {"back"}]),
        pytest.param("stickiness", one_comes_and_goes, [{"moved"}], marks=pytest.mark.slow),
        pytest.param("halt", a_short_cut, [{"halted"}], marks=pytest.mark.slow),
        pytest.param("recording", one_comes_and_goes, [{"twice"}], marks=pytest.mark.slow),
        pytest.param("abandoning", expired_in_the_middle, [{"halted", "stay"}], marks=pytest.mark.slow),
    ],
)
def test_what_is_missing_is_noticed(
    tmp_path: Path, service: Service, mechanism: str, play: Play, rules: list[set[str]]
) -> None:
    """The same story without the mechanism breaks the rules that it is there for.

    Of each set one: what goes on after its session was lost is seen before or after the worker has joined again.
    """
    result = play(GroupRun(tmp_path, service, queues=QUEUES, settings=jobs(play, mechanism)), service)
    broken = {violation.rule for violation in result.violations}
    assert all(broken & some for some in rules), result.explain()


@pytest.mark.parametrize(
    ("play", "event"),
    [
        (stopped_at_a_commit, "lost"),
        pytest.param(expired_in_the_middle, "lost", marks=pytest.mark.slow),
        pytest.param(one_comes_and_goes, "", marks=pytest.mark.slow),
        pytest.param(a_short_cut, "suspended", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_noticed_with_all_mechanisms(tmp_path: Path, service: Service, play: Play, event: str) -> None:
    """The same stories with complete workers break no rule."""
    result = play(GroupRun(tmp_path, service, queues=QUEUES, settings=jobs(play)), service)
    assert result.violations == [], result.explain()
    assert not event or heard(result.history, event), f"nobody was {event}"
    assert event or not result.counts["twice"], "there was no failure"

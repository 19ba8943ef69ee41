"""The checker sees when a mechanism is missing on which the promises stand, and sees nothing when it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.qdo.faults.checking.checker import Limits
from tests.qdo.faults.checking.history import History
from tests.qdo.faults.checking.records import Answered, Asked, Handled, Joined
from tests.qdo.faults.experiment import CheckResult, Experiment, Settings, explain
from tests.qdo.faults.servers.services import Service

Play = Callable[[Experiment, Service], CheckResult]

QUEUES = {"crew-a": 3, "crew-b": 3}
STOP_AT = 6
MIDDLING = 6.0
"""Seconds of a session of which a member can be suspended for some."""
LONG = 20.0
"""Seconds of a session that something else which keeps the machine busy does not end."""


def stopped_at_a_commit(experiment: Experiment, service: Service) -> CheckResult:
    """A worker is stopped in the instant of a commit, until another has done all its work; then it goes on."""
    with experiment.running() as (crew, queues):
        experiment.load(queues, 100)
        crew.start("w1")
        assert experiment.until(lambda: crew.stopped("w1"))
        crew.start("w2")
        experiment.settle(queues)
        crew.resume("w1")
        commits = [asked.call for asked in experiment.seen(Asked) if asked.what == "commit" and asked.worker == "w1.1"]
        stopped = "w1.1", commits[STOP_AT - 1]
        assert experiment.until(
            lambda: (
                stopped in {(each.worker, each.call) for each in experiment.seen(Answered)}
                and any(each.life > 1 for each in experiment.seen(Joined))
            )
        )
        experiment.finish(crew)
    return experiment.judge()


def expired_in_the_middle(experiment: Experiment, service: Service) -> CheckResult:
    """A worker's session is ended behind its back while it has seconds of work in hand."""
    with experiment.running() as (crew, queues):
        experiment.load(queues, 100)
        crew.start("w1")
        assert experiment.until(lambda: len(experiment.seen(Handled)) > 30)
        with experiment.doing("expire", "w1.1"):
            service.expire(crew.session("w1"))
        experiment.settle(queues)
        experiment.finish(crew)
    return experiment.judge()


def a_short_cut(experiment: Experiment, service: Service) -> CheckResult:
    """The coordination service does not answer for a while, but for less than a session."""
    service.session_timeout = MIDDLING
    with experiment.running() as (crew, queues):
        experiment.staff(crew, queues, ["w1", "w2"])
        experiment.load(queues, 600)
        with experiment.doing("cut"):
            service.deeds["cut"]("", 0.87 * service.session_timeout)
        experiment.settle(queues)
        experiment.finish(crew)
    return experiment.judge()


def one_comes_and_goes(experiment: Experiment, service: Service) -> CheckResult:
    """Three have shared the partitions out when a fourth joins them, and leaves again; no session ends meanwhile."""
    service.session_timeout = LONG
    with experiment.running() as (crew, queues):
        for slots in (["w1", "w2", "w3"], ["w4"]):
            experiment.staff(crew, queues, slots)
            experiment.load(queues, 100)
            threading.Event().wait(Limits().settling)  # beyond that no coming explains a move
        with experiment.doing("leave", "w4.1"):
            crew.leave("w4")
        experiment.settle(queues)
        experiment.finish(crew)
    return experiment.judge()


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
    check_result = play(Experiment(tmp_path, service, queues=QUEUES, settings=jobs(play, mechanism)), service)
    broken = {violation.rule for violation in check_result.violations}
    assert all(broken & some for some in rules), explain(check_result)


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
    check_result = play(Experiment(tmp_path, service, queues=QUEUES, settings=jobs(play)), service)
    assert check_result.violations == [], explain(check_result)
    assert not event or heard(check_result.history, event), f"nobody was {event}"
    assert event or not check_result.counts.twice, "there was no failure"

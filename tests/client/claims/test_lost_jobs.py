"""Lost jobs: what a program was told stays true, on scripted servers that are unreachable for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import Any

import pytest

from queuey.client import RetryPolicy
from queuey.client.claims.renewers import AsyncClaimRenewer, ClaimRenewer
from tests.client.claims.test_claims import describe_requests
from tests.client.scripted import Script, break_connection, claims, settlement
from tests.replacing import replace

Connect = Callable[..., Any]


@pytest.fixture(autouse=True)
def without_renewals() -> Iterator[None]:
    """Disables background renewals, which would run beside a clock that a test moves by half a minute."""

    def begin_nothing(_: object, __: float) -> None: ...

    with replace(ClaimRenewer.wake_by, begin_nothing), replace(AsyncClaimRenewer.wake_by, begin_nothing):
        yield


@pytest.mark.parametrize(
    ("does", "expected"),
    [
        pytest.param(str, ["release r1"], id="stops, so the loop releases the job"),
        pytest.param(methodcaller("renew"), ["renew r1", "release r1"], id="renews, which brings nothing back"),
        pytest.param(methodcaller("ack"), ["ack r1"], id="acknowledges what it has done after all"),
        pytest.param(methodcaller("release", delay=9), ["release r1"], id="releases"),
    ],
)
def test_what_a_program_that_saw_its_job_lost_does(
    connect: Connect, does: Callable[[Any], object], expected: list[str]
) -> None:
    """A job that was seen lost stays lost, and is not acknowledged unless the program does so."""
    script = Script(claims(1), *[settlement() for _ in expected], claims())
    for job in connect(script).job_queue("mail").claim(idle=0):
        assert not job.lost
        script.now += 31
        assert job.lost
        does(job)
        assert job.lost
    assert describe_requests(script) == ["claims 1", *expected, "claims 1"]
    assert script.sent(1).get("delay") == (9 if "delay" in repr(does) else None)


def test_a_job_that_nobody_asked_about_is_acknowledged(connect: Connect) -> None:
    """A handler that finished without checking its claim is acknowledged: the service decides."""
    script = Script(claims(1), claims())
    for job in connect(script).job_queue("mail").claim(idle=0):
        script.now += 31
        assert job.deliveries == 1
    assert describe_requests(script) == ["claims 1", "claims 1 r1"]
    assert not job.lost


@pytest.mark.parametrize("reply", [settlement(1), break_connection], ids=["refused", "away"])
def test_the_release_of_a_lost_job_may_fail(connect: Connect, reply: Any) -> None:  # noqa: ANN401 - any reply
    """The loop goes on if another caller has the job already, or the service is still away."""
    script = Script(claims(1), reply, claims(2), claims())
    handled = []
    for job in connect(script, retry=RetryPolicy(deadline=0)).job_queue("mail").claim(idle=0):
        handled.append(job.body)
        script.now += 31 if job.body == "m1" else 0
        assert job.lost == (job.body == "m1")
    assert handled == ["m1", "m2"]
    assert describe_requests(script) == ["claims 1", "release r1", "claims 1", "claims 1 r2"]


def test_jobs_that_expired_while_they_waited_are_not_begun(connect: Connect) -> None:
    """Those of a batch whose time is over before their turn are released together, and others are claimed."""
    script = Script(claims(1, 2, 3, 4), *[settlement() for _ in range(4)], claims(3), claims())
    handled = []
    for job in connect(script).job_queue("mail").claim(limit=4, idle=0):
        handled.append((job.body, job.lost))
        if len(handled) == 1:
            script.now += 20
            job.renew()
        if len(handled) == 2:
            script.now += 11
    assert handled == [("m1", False), ("m2", False), ("m3", False)]
    assert describe_requests(script)[:3] == ["claims 4", "renew r1", "ack r1"]
    assert describe_requests(script)[3:] == ["ack r2", "release r3 r4", "claims 4", "claims 4 r3"]


def test_an_answer_that_came_too_late_begins_no_job(connect: Connect) -> None:
    """A claim whose answer took longer than the claim lasts is released, and its job is claimed again."""
    script = Script(claims())

    def late(_: object) -> Any:  # noqa: ANN401 - an answer
        script.now += 31
        return claims(1)

    script = Script(late, settlement(), claims(1), claims())
    assert [job.body for job in connect(script).job_queue("mail").claim(idle=60)] == ["m1"]
    assert describe_requests(script)[:3] == ["claims 1", "release r1", "claims 1"]

"""Tests of held claims of a client: which requests are sent about them and when, by a test clock."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from queuey.client import ConnectionLost, NotAllowed
from queuey.client.claims.held import ClaimBatch, HeldClaims, Work
from queuey.client.errors import ErrorAnswer


def make_held_claims() -> tuple[HeldClaims, list[float]]:
    """Returns held claims, and the clock, whose last number is the time."""
    times = [100.0]
    return HeldClaims(lambda: times[-1]), times


def next_work(held: HeldClaims) -> Work:
    work = held.next_work()
    assert work is not None
    return work


def test_claims_are_renewed_at_half_their_time_together() -> None:
    """One request renews the claims of a queue that are due or due soon; each queue has its own request."""
    held, times = make_held_claims()
    assert held.seconds_until_due() is None
    first, second = held.add("q", "r1", 40, 100), held.add("q", "r2", 40, 104)
    other, later = held.add("p", "r1", 40, 100), held.add("q", "r3", 40, 110)
    assert held.seconds_until_due() == 20
    assert held.next_work() is None
    times.append(120.0)
    paths = []
    while (work := held.next_work()) is not None:
        paths.append(work.calls[0].path)
        held.record_success(work, 120, [])
    assert sorted(paths) == ["p/claims/renew", "q/claims/renew"]
    assert [claim.end for claim in (first, second, other, later)] == [160, 160, 160, 150]
    assert held.seconds_until_due() == 10


def test_a_renewal_that_fails_is_tried_again() -> None:
    """A renewal that fails is tried again soon, whatever the error, and given up when the claim has expired."""
    held, times = make_held_claims()
    first, second = held.add("q", "r1", 40, 100), held.add("q", "r2", 40, 100)
    times.append(120.0)
    held.record_failure(next_work(held), ConnectionLost("broken"))
    assert held.seconds_until_due() == 4
    times.append(124.0)
    held.record_success(next_work(held), 124, ["r2"])
    assert (first.state, second.state, first.end) == ("held", "lost", 164)
    times.append(144.0)
    held.record_failure(next_work(held), NotAllowed(ErrorAnswer(status=403)))
    assert (first.state, held.seconds_until_due()) == ("held", 4)
    times.append(164.0)
    held.record_failure(next_work(held), NotAllowed(ErrorAnswer(status=403)))
    assert (first.state, held.seconds_until_due()) == ("lost", None)


def test_what_fails_waits_for_what_works() -> None:
    """Claims whose renewals fail come last, and take no longer than the shortest claim can wait."""
    held, times = make_held_claims()
    held.add("away", "r1", 3600, -1700)
    times.append(120.0)
    work = next_work(held)
    assert (work.calls[0].path, work.timeout) == ("away/claims/renew", 30.0)
    held.record_failure(work, ConnectionLost("broken"))
    held.add("long", "r1", 60, 160)
    held.add("short", "r1", 10, 166)
    times.append(190.0)
    paths = []
    for _ in range(3):
        work = next_work(held)
        assert work.timeout == 2.5
        paths.append(work.calls[0].path.partition("/")[0])
        held.record_success(work, 190, [])
    assert paths == ["short", "long", "away"]


def test_what_has_not_begun_in_time_is_released() -> None:
    """Work that takes long releases the claims of its batch on which none has begun; a finished one is acknowledged."""
    held, times = make_held_claims()
    batch = ClaimBatch(max_seconds=0.05)
    first, second, third, finished = (held.add("q", f"r{n}", 40, 100, batch) for n in range(1, 5))
    held.finish(finished)
    assert held.seconds_until_due() == 0.5
    held.begin([first])
    assert first.begun
    assert held.seconds_until_due() == pytest.approx(0.05)
    times.append(times[-1] + 0.04)
    held.begin([second])
    times.append(times[-1] + 0.04)
    assert (held.seconds_until_due() or 0.0) > 0
    times.append(times[-1] + 0.02)
    work = next_work(held)
    assert (work.claims, work.calls, first.state, second.state) == ((third,), (), "held", "held")
    [call] = held.repeated_releases(work)
    assert json.loads(call.content or b"") == {"receipts": ["r3"], "begun": False}
    held.begin([third])
    assert (third.state, third.begun) == ("ended", False)
    held.finish_or_return_lost(second)
    assert held.seconds_until_due() == pytest.approx(finished.due - times[-1])


def test_what_is_released_during_a_renewal_is_released_once_more() -> None:
    """A claim released during a renewal is released again on the same terms, as the renewal may have come later."""
    held, times = make_held_claims()
    held.add("q", "r1", 40, 100)
    refused, now, later, left = (held.add("q", f"r{n}", 40, 100) for n in range(2, 6))
    times.append(120.0)
    work = next_work(held)
    assert held.repeated_releases(work) == []
    held.end_by_release([refused], 50_000)
    held.hold_again(refused)
    now.begun = later.begun = True
    held.end_by_release([now])
    held.end_by_release([later], 600)
    _, calls = held.leave([left])
    assert [json.loads(call.content or b"") for call in calls] == [{"receipts": ["r5"], "begun": False}]
    held.record_success(work, 120, [])
    again = [(call.path, json.loads(call.content or b"")) for call in held.repeated_releases(work)]
    assert {path for path, _ in again} == {"q/claims/release"}
    released = sorted((each.get("delay", 0), each.get("begun", True), each["receipts"]) for _, each in again)
    assert released == [(0, False, ["r5"]), (0, True, ["r3"]), (600, True, ["r4"])]
    times.append(140.0)
    assert sorted(claim.receipt for claim in next_work(held).claims) == ["r1", "r2"]


FORKED = """
import os, sys, time
from queuey.client._sync.job import send_work
from queuey.client.claims.renewers import ClaimRenewer

calls = []
renewer = ClaimRenewer(lambda call, within=None: calls.append(call.path), send_work, time.monotonic)
claims = [renewer.claims.add("q", "r1", 600, time.monotonic())]
renewer.keep(claims)
pid = os.fork()
if pid:
    child = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.exit(child or [each.receipt for each in renewer.claims._claims] != ["r1"])
renewer.keep([renewer.claims.add("q", "r2", 0.3, time.monotonic())])
left = [call for calls in renewer.claims.leave(claims) for call in calls]
end = time.monotonic() + 50
while not calls and time.monotonic() < end:
    time.sleep(0.01)
os._exit(len(left) or not calls)
"""


@pytest.mark.needs_programs
def test_a_child_leaves_claims_to_its_parent() -> None:
    """A forked process neither renews nor releases its parent's claims, and renews its own."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    subprocess.run(command, check=True, timeout=60)

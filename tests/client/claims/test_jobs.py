"""Jobs of a real service for both clients, in process and over a socket, and the examples of the documentation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from socket import gethostname
from typing import Any

import pytest

from queuey.client import AsyncClient, Client, InvalidArgument, InvalidRequest, QueueNotFound
from queuey.client.calls import claim_calls
from queuey.client.calls.claim_calls import name_this_process
from queuey.client.credentials.profile import read_profile
from tests.client.live import Served
from tests.replacing import replace_in
from tests.waiting import until

Queuey = Any
"""A client of either kind."""


def leave_by_break(jobs: Queuey, bodies: list[str]) -> None:
    for job in jobs.claim(idle=0, limit=20):
        bodies.append(job.body)
        break


def leave_by_error(jobs: Queuey, bodies: list[str]) -> None:
    with suppress(KeyError):
        for job in jobs.claim(idle=0, limit=20):
            bodies.append(job.body)
            raise KeyError(job.body)


def leave_run_by_error(jobs: Queuey, bodies: list[str]) -> None:
    def handle(job: Any) -> None:  # noqa: ANN401 - of either kind
        bodies.append(job.body)
        raise KeyError(job.body)

    with pytest.raises(KeyError):
        jobs.run(handle, on_error="raise", idle=0, limit=20)


def give_back(jobs: Queuey, bodies: list[str]) -> None:
    first, *rest = jobs.receive(20)
    bodies.append(first.message.body)
    jobs.release(first, delay=600)
    jobs.release(rest, begun=False)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_run_by_error, give_back])
def test_only_what_began_is_an_attempt(queuey: Queuey, leave: Callable[[Queuey, list[str]], None]) -> None:
    """However a program leaves a batch of claimed jobs, only those that it began have one attempt less."""
    queue = queuey.create_queue(max_deliveries=3, backoff={"first": 600, "most": 600}).name
    queuey.send_many(queue, [str(number) for number in range(20)])
    jobs, began = queuey.job_queue(queue), list[str]()
    for _ in range(4):
        leave(jobs, began)
    left = jobs.receive(20)
    assert (len(began), len(left) >= 16) == (4, True)
    assert [one.deliveries for one in left] == [began.count(one.message.body) + 1 for one in left]
    assert [one.handed_out for one in left if one.message.body not in began] == [5] * (20 - len(set(began)))
    queuey.delete_queue(queue)


def test_several_queues(queuey: Queuey) -> None:
    """Jobs come from the first queue that has any, and everything about a job goes to its own queue."""
    names = [queuey.create_queue().name for _ in range(3)]
    for name in names:
        queuey.send_many(name, [f"{name} 1", f"{name} 2"])
    jobs = queuey.job_queue(names)
    done = []
    for job in jobs.claim(idle=0, limit=3):
        assert job.body.startswith(job.queue)
        done.append(job.queue)
        if job.queue == names[2]:
            job.release(600)
    assert done == [names[0]] * 2 + [names[1]] * 2 + [names[2]] * 2
    backlogs = [queuey.job_queue(name).backlog() for name in names]
    assert [(one.retrying, one.claimed) for one in backlogs] == [(0, 0), (0, 0), (2, 0)]
    queuey.send(names[1], "one")
    queuey.delete_queue(names[2])
    queuey.send(names[0], "two")
    first = jobs.receive(1)
    second = jobs.receive(1, acknowledge=first)
    assert [one.queue for one in (*first, *second)] == names[:2]
    expired = jobs.receive(1)
    assert (expired, {name: type(error) for name, error in expired.errors.items()}) == ([], {names[2]: QueueNotFound})
    assert jobs.ack([*first, *second]) == []
    with pytest.raises(InvalidArgument, match="may belong to any of"):
        jobs.ack(first[0].receipt)
    with pytest.raises(InvalidArgument, match="works on one queue"):
        jobs.backlog()
    with pytest.raises(InvalidArgument, match="partitions"):
        list(jobs.claim(partitions=1))


def test_a_paused_queue(queuey: Queuey, queue: str) -> None:
    """Nobody gets a message until it is resumed."""
    queuey.send(queue, "a")
    jobs = queuey.job_queue(queue)
    jobs.pause()
    assert jobs.receive() == []
    jobs.resume()
    assert [job.body for job in jobs.claim(idle=0)] == ["a"]


def test_a_run_goes_on_after_errors(queuey: Queuey, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    """Jobs whose handler returns are acknowledged; where it raises, the job is released with the error, and kept."""
    sent = queuey.send_many(queue, ["1", "0", "x", "2"])
    done = []

    def handle(job: Any) -> None:  # noqa: ANN401 - of either kind
        done.append(1 / int(job.body))

    queuey.job_queue(queue).run(handle, retry_delay=lambda _deliveries: 600.0, idle=0)
    assert sorted(done) == [0.5, 1.0]
    counts = queuey.job_queue(queue).counts()
    assert counts.retrying == 2
    reasons = [reason.text for one in sent for reason in queuey.explain(queue, one).reasons if reason.code == "attempt"]
    kinds = ["ValueError: invalid literal", "ZeroDivisionError: "]
    assert len(reasons) == 2
    assert all(any(kind in text for text in reasons) for kind in kinds)
    assert all(f" by {name_this_process()} " in text for text in reasons)
    assert len(caplog.messages) == 2
    assert "could" not in caplog.text


def test_a_run_leaves_decisions_alone(served: Served) -> None:
    """What a handler, here a coroutine, has released or acknowledged by itself stays so, whatever it raises then."""
    profile = read_profile(served.profile)

    async def handle(job: Any) -> None:  # noqa: ANN401 - of this kind
        await (job.ack() if job.body == "done" else job.release(delay=600, reason="not now"))
        raise KeyError(job.body)

    async def main() -> None:
        async with AsyncClient(profile.url, key=profile.key) as client:
            name = (await client.create_queue()).name
            sent = await client.send_many(name, ["done", "later"])
            jobs = client.job_queue(name)
            await jobs.run(handle, idle=0)
            assert ((await jobs.size()).size, (await jobs.counts()).retrying) == (1, 1)
            texts = [reason.text for one in sent for reason in (await client.explain(name, one)).reasons]
            assert [text.partition(": ")[2] for text in texts if "attempt" in text] == ["Released: not now"]
            await client.delete_queue(name)

    asyncio.run(main())


def test_a_coroutine_function_needs_the_other_client(served: Served) -> None:
    """A client for threads would await nothing, and acknowledge jobs that were not begun; ``on_error`` is checked."""
    profile = read_profile(served.profile)

    async def handle(_job: Any) -> None:  # noqa: ANN401 - of either kind
        pass

    with (
        Client(profile.url, key=profile.key) as client,
        pytest.raises(InvalidArgument, match=r"handle is a coroutine function, .*: use AsyncClient"),
    ):
        client.job_queue("mail").run(handle)
    with (
        Client(profile.url, key=profile.key) as client,
        pytest.raises(InvalidArgument, match="on_error is 'stop': use 'retry' or 'raise'"),
    ):
        client.job_queue("mail").run(print, on_error="stop")  # type: ignore[arg-type]


class Unspeakable(Exception):
    """An error with an empty text, or one that cannot be encoded."""

    def __str__(self) -> str:
        if self.args:
            return str(self.args[0])
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"), [(Unspeakable("\udcff" * 5000), "?" * 4096), (Unspeakable(), "The text of this error")]
)
def test_errors_that_cannot_be_told(error: Exception, text: str) -> None:
    """A worker goes on, whatever its handler raises."""
    [call] = claim_calls.release("mail", ["r1"], 1.0, error)
    reason = json.loads(call.content or b"")["reason"]
    assert reason["error"].endswith("test_jobs.Unspeakable")
    assert reason["text"].startswith(text)
    assert len(reason["text"]) <= 4096


@pytest.mark.parametrize("text", ["\0", "\n", "\u202e", "\ud800"], ids=ascii)
@pytest.mark.parametrize("where", ["error class", "error text", "host"])
def test_every_reason_can_be_stored(over_socket: Queuey, where: str, text: str) -> None:
    """Whatever an error and a host are called, the service accepts the release, and shows class, text and worker."""
    queuey, queue = over_socket, over_socket.create_queue().name
    names = {"error class": "Bad", "error text": "no egg", "host": "box"}
    names[where] = f" x{text}y" * 80
    queuey.send(queue, "a")
    with replace_in(claim_calls, gethostname, lambda: names["host"]):
        for job in queuey.job_queue(queue).claim(idle=0):
            job.release(600, (names["error class"], names["error text"]))
    [job] = queuey.job_queue(queue).outstanding(states=True)
    shown = {"error class": job.failure.error, "error text": job.failure.text, "host": job.worker}
    assert all(shown[name].strip().startswith("x" if name == where else names[name]) for name in names)
    assert all(value.isprintable() for name, value in shown.items() if name != "error text")


def test_states(queuey: Queuey, queue: str) -> None:
    """A loop and a program that claims by itself report their progress; a refused state does not cost the claim."""
    queuey.send_many(queue, ["a", "b"])
    jobs = queuey.job_queue(queue)
    first = next(claimed for _ in range(3) for claimed in jobs.receive(1))
    for job in jobs.claim(idle=0):
        job.set_state({"done": 1})
        with pytest.raises(InvalidRequest, match="4097 bytes"):
            job.set_state("x" * 4095)
        assert jobs.set_states([(first, ["ü"])]) == []
        states = {one.message_id: one.state for one in jobs.outstanding(states=True)}
        assert states == {job.message.id: {"done": 1}, first.message.id: ["ü"]}
        assert not job.lost
    assert [one.state for one in jobs.outstanding()] == [None]
    jobs.release_all()
    [again] = [claimed for _ in range(3) for claimed in jobs.receive(1)]
    assert [each.status for each in jobs.set_states([(first, 1), (again, 2)])] == ["superseded"]
    assert [one.state for one in jobs.outstanding(states=True)] == [2]


def test_many_long_states(queuey: Queuey, queue: str) -> None:
    """Long states go in several requests, because the service takes bodies of a quarter of a MiB."""
    queuey.send_many(queue, ["a"] * 70)
    jobs, longest = queuey.job_queue(queue), "x" * 4094
    claimed = [one for _ in range(3) for one in jobs.receive(70)]
    assert jobs.set_states([(one, longest) for one in claimed]) == []
    assert [one.state for one in jobs.outstanding(states=True)] == [longest] * 70


def test_a_worker_learns_that_its_job_is_cancelled(queuey: Queuey, queue: str) -> None:
    """By the renewals that are made in the background, or by one of its own; its failure is its last."""
    receipt = queuey.send(queue, "job")
    jobs = queuey.job_queue(queue)
    [ended] = (
        job
        for job in jobs.claim(idle=0, ttl=2)
        if not job.cancelled and wait_until_cancelled(jobs.cancel(receipt), job)
    )
    assert ended.cancelled
    assert (jobs.cancel(receipt), jobs.retry(receipt), jobs.size().size) == ("done", "done", 0)
    other = queuey.send(queue, "other", delay=600)
    assert jobs.retry(other) == "waiting"
    for job in jobs.claim(idle=0, ttl=600):
        jobs.cancel(other)
        assert not job.cancelled
        job.renew()
        assert job.cancelled
        job.release(reason="stopped")
    assert jobs.receive() == []


def wait_until_cancelled(answer: str, job: Any) -> bool:  # noqa: ANN401 - of either client
    assert answer == "claimed"
    until(lambda: job.cancelled)
    return True

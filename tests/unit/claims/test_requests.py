"""The requests that wait for one log, and the steps by which they are answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest

from queuey.claims import ClaimReceipt, EntryDraft, Poll
from queuey.errors import Outcome, StoreClosed, StoreUnavailable, TooManyClaims
from queuey.messages import LogPage, Queue
from queuey.service.claims import steps
from queuey.service.claims.duplicates import Duplicates
from queuey.service.claims.requests import PollRequest, RequestLine, SettleRequest
from queuey.service.claims.runtime import Done, ThreadRuntime
from queuey.storage import Store
from tests.replacing import replace
from tests.sim.replicas import ModelStore
from tests.sim.test_sharing import QUEUE as HERE
from tests.sim.test_sharing import SOON, Scene

QUEUE = Queue(application="a", name="q", uid=1, qid=2, partitions=1)


def poll(limit: int = 10) -> PollRequest:
    """Returns a request for messages."""
    return PollRequest(QUEUE, lambda _value, _error: None, Poll(limit, 60, 1000))


def test_what_has_its_answer_is_not_kept() -> None:
    """While an entry is in doubt no round takes requests, so those that were given up must go without one."""
    line = RequestLine()
    line.add([poll()], 1.0)
    line.take()
    late, gone, waits = poll(), poll(), poll()
    line.add([late, gone, waits], 2.0)
    late.answer(None, StoreUnavailable("late"))
    gone.give_up()
    assert line.waiting() == [waits]
    assert line.load == 20
    assert line.take() == [waits]
    assert line.take() == []
    assert (line.load, line.idle) == (0, True)


def test_patience_counts_from_when_a_request_came_first() -> None:
    """What another worker has had for a while, or an earlier round, has no longer to wait than all others."""
    line = RequestLine()
    request = poll()
    line.add([request], 1.0)
    assert line.take() == [request]
    line.add([request], 4.0)
    assert request.asked == 1.0


@pytest.mark.parametrize("error", [StoreUnavailable("away"), TooManyClaims("full"), StoreClosed("closed")])
def test_no_error_is_certain_of_what_may_be_done(error: StoreUnavailable | TooManyClaims) -> None:
    """What another worker may have done is in doubt, whatever the error of doing it again is."""
    told: list[Outcome] = []

    def done(_value: object, error: Exception | None) -> None:
        told.append(cast("StoreUnavailable", error).outcome)

    for doubtful in (False, True):
        request = SettleRequest(QUEUE, done, "acknowledge", [ClaimReceipt(1, 1, 1, 1)])
        request.doubtful = doubtful
        request.answer(None, error)
    assert told == ["none", "unknown"]


@pytest.mark.parametrize("moment", [Duplicates.draft, EntryDraft.acknowledge, EntryDraft.deliver])
def test_giving_up_while_an_entry_is_decided_on(moment: Callable[..., object]) -> None:
    """The outcome is none if the entry does not have what was asked for, and unknown if it has."""
    scene = Scene()
    _, claims = scene.start(ModelStore)
    scene.fill(1, 3)
    scene.claim(claims, HERE, 2)
    scene.let(SOON)
    told: list[Outcome] = []

    def giving_up(*args: object) -> object:
        result = moment(*args)
        told.extend(give_up() for give_up in begun)
        begun.clear()
        return result

    begins: list[Callable[[], Callable[[], Outcome]]] = [
        lambda: claims.begin_acknowledge(HERE, [scene.found[0].receipt], lambda *_: None),
        lambda: claims.begin_claim(HERE, lambda *_: None, limit=1, ttl=60),
    ]
    for begin, asked in zip(begins, (EntryDraft.acknowledge, EntryDraft.deliver), strict=True):
        if moment in {Duplicates.draft, asked}:
            last = scene.replicas.log(HERE, 1).last
            with replace(moment, giving_up):
                begun = [begin()]
                scene.let(SOON)
            assert told.pop() == ("none" if scene.replicas.log(HERE, 1).last == last else "unknown")
            assert not told
            assert (scene.replicas.log(HERE, 1).last == last) == (moment is Duplicates.draft)


def test_none_is_said_where_no_entry_was_sent() -> None:
    """If a claim finds nothing, and the read of the log before its answer fails, it has certainly changed nothing."""
    scene = Scene()
    _, claims = scene.start(ModelStore)
    scene.claim(claims, HERE, 1)
    scene.let(SOON)
    errors: list[Exception | None] = []

    def failing(*_: object, **_options: object) -> LogPage:
        raise StoreUnavailable("no answer", outcome="unknown")

    with replace(ModelStore.read_log, failing):
        claims.begin_claim(HERE, lambda _found, error: errors.append(error), limit=1, ttl=60)
        scene.let(SOON)
    [error] = errors
    assert isinstance(error, StoreUnavailable)
    assert error.outcome == "none"


def test_what_cannot_be_begun_is_an_error_of_the_step() -> None:
    """A call that raises, before or after it has called back, ends its step once; the steps go on."""
    seen: list[object] = []

    def raising(done: Done, *, first: bool) -> None:
        if first:
            done("there", None)
        raise StoreClosed("closed")

    def work() -> Generator[Callable[[Done], object], Any, None]:
        seen.append((yield lambda done: raising(done, first=True)))
        try:
            yield lambda done: raising(done, first=False)
        except StoreClosed as error:
            seen.append(error.code)
        seen.append((yield lambda done: done("after", None)))

    steps.run(work(), lambda again: again())
    assert seen == ["there", "StoreClosed", "after"]


def test_timers_start_when_a_thread_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started for timers, the next one tries again, and all are called."""
    runtime = ThreadRuntime(cast("Store", None))
    called = threading.Barrier(3)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        runtime.later(0.0, lambda: threading.Thread(target=called.wait).start())
    assert threading.Thread.start is start
    runtime.later(0.0, lambda: threading.Thread(target=called.wait).start())
    called.wait(60)

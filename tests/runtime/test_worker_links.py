"""Requests between the workers of one service."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue

import pytest

from queuey.runtime import workers as workers_module
from queuey.runtime.workers import (
    LOST_SECONDS,
    MAX_FRAME_BYTES,
    QUIET_SECONDS,
    Answer,
    GiveUp,
    Handler,
    Topic,
    WorkerIdentity,
    Workers,
)
from tests.contract.samples import eventually
from tests.replacing import replace_in

Answers = SimpleQueue[bytes | None]
CLAIM, SETTLE = Topic(17, bytes, bytes), Topic(18, bytes, bytes)


def join_workers(stack: ExitStack, identity: WorkerIdentity, handler: Handler[bytes, bytes]) -> Workers:
    workers = Workers()
    workers.handle(CLAIM, handler)
    workers.join(identity)
    stack.callback(workers.leave, 0)
    return workers


def double(question: bytes, answer: Answer[bytes]) -> GiveUp:
    answer(question * 2)
    return lambda: None


@pytest.fixture(name="stack")
def _stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(name="service")
def _service() -> WorkerIdentity:
    return WorkerIdentity.of_service(2)


@pytest.fixture(name="asking")
def _asking(stack: ExitStack, service: WorkerIdentity) -> Workers:
    return join_workers(stack, WorkerIdentity(*service[:2], 1), double)


def test_questions_and_answers(stack: ExitStack, service: WorkerIdentity, asking: Workers) -> None:
    """Each question gets its own answer, in both directions, from any thread, however long it is."""
    other = join_workers(stack, WorkerIdentity(*service[:2], 2), double)
    assert eventually(lambda: asking.is_up(2) and other.is_up(1), 60)
    answers: dict[bytes, bytes | None] = {}

    def ask(workers: Workers, number: int, mark: bytes) -> None:
        for text in (mark + b"%d" % at for at in range(200)):
            workers.ask(number, CLAIM, text, partial(answers.__setitem__, text))

    threads = [threading.Thread(target=ask, args=(asking, 2, b"%d-" % number)) for number in range(4)]
    threads.append(threading.Thread(target=ask, args=(other, 1, b"x-")))
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(answers) == 1000, 60)
    assert all(answer == text * 2 for text, answer in answers.items())
    long: Answers = SimpleQueue()
    asking.ask(2, CLAIM, bytes(10_000_000), long.put)
    assert long.get(timeout=60) == bytes(20_000_000)


def test_there_is_no_answer(stack: ExitStack, service: WorkerIdentity, asking: Workers) -> None:
    """A request gets no answer from the worker itself, from one that is gone or fails, or if it is unknown."""
    answers: Answers = SimpleQueue()
    for number in (1, 2, 3):
        asking.ask(number, CLAIM, b"", answers.put)
        assert answers.get(timeout=60) is None
    assert not asking.is_up(2)

    def fail(_question: bytes, _answer: Answer[bytes]) -> GiveUp:
        raise ValueError

    join_workers(stack, WorkerIdentity(*service[:2], 2), fail)
    assert eventually(lambda: asking.is_up(2), 60)
    for topic in (CLAIM, SETTLE):
        asking.ask(2, topic, b"", answers.put)
        assert answers.get(timeout=60) is None
    assert asking.is_up(2)


def test_who_is_slow_and_who_is_stopped(stack: ExitStack, service: WorkerIdentity, asking: Workers) -> None:
    """A slow worker is awaited; one that does not respond at all is not."""
    answers: Answers = SimpleQueue()
    kept: SimpleQueue[Answer[bytes]] = SimpleQueue()

    def keep(_question: bytes, answer: Answer[bytes]) -> GiveUp:
        kept.put(answer)
        return lambda: None

    stack.enter_context(replace_in(workers_module, QUIET_SECONDS, 0.1))
    stack.enter_context(replace_in(workers_module, LOST_SECONDS, 1.0))
    slow = join_workers(stack, WorkerIdentity(*service[:2], 2), keep)
    assert eventually(lambda: asking.is_up(2), 60)
    asking.ask(2, CLAIM, b"", answers.put)
    time.sleep(1.5)
    kept.get(timeout=60)(b"late")
    assert answers.get(timeout=60) == b"late"
    slow.leave(0)
    assert eventually(lambda: not asking.is_up(2), 60)
    with socket.socket(socket.AF_UNIX) as stopped:
        assert eventually(lambda: _try_bind(stopped, service.address(2)), 60)
        stopped.listen()
        stopped.settimeout(60)
        assert not eventually(lambda: asking.is_up(2), 1.5)
        with stopped.accept()[0]:
            assert not asking.is_up(2)
            asking.ask(2, CLAIM, b"", answers.put)
            assert answers.get(timeout=60) is None


def test_who_talks_nonsense(service: WorkerIdentity, asking: Workers) -> None:
    """A connection is closed if its peer sends more than any worker does."""
    answers: Answers = SimpleQueue()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(service.address(2))
        listener.listen()
        asking.ask(2, CLAIM, b"", answers.put)
        peer, _ = listener.accept()
        with peer:
            peer.sendall(workers_module._FRAME.pack(MAX_FRAME_BYTES + 1, 0, 1))
            assert answers.get(timeout=60) is None


class LaterClock:
    """Replaces the module ``time`` in another one, two minutes later."""

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() + 120


def test_leaving(stack: ExitStack, service: WorkerIdentity, asking: Workers) -> None:
    """A worker that leaves, long after it has joined, answers pending requests; then it can be replaced."""
    answers: Answers = SimpleQueue()
    reached = threading.Event()

    def soon(question: bytes, answer: Answer[bytes]) -> GiveUp:
        timer = threading.Timer(0.5, answer, (question,))
        timer.start()
        reached.set()
        return timer.cancel

    leaving = join_workers(stack, WorkerIdentity(*service[:2], 2), soon)
    assert eventually(lambda: asking.is_up(2), 60)
    asking.ask(2, CLAIM, b"before", answers.put)
    assert reached.wait(60)
    stack.enter_context(replace_in(workers_module, time, LaterClock))
    leaving.leave(60)
    assert answers.get(timeout=60) == b"before"
    assert not asking.is_up(2)
    join_workers(stack, WorkerIdentity(*service[:2], 2), double)
    assert eventually(lambda: asking.is_up(2), 60)
    asking.ask(2, CLAIM, b"x", answers.put)
    assert answers.get(timeout=60) == b"xx"


def _try_bind(listener: socket.socket, address: str) -> bool:
    try:
        listener.bind(address)
    except OSError:
        return False
    return True

"""The blocking consumer: threads, interruptions and forks."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qdo.consumer.blocking import Consumer, _run_in_thread
from qdo.consumer.consumer import AsyncConsumer
from qdo.errors import InvalidArgument, NotOwner
from qdo.loops import LoopThread
from qdo.partitions import Partition
from qdo.settings import ConsumerSettings
from queuey.client import AsyncClient, Client
from queuey.client.credentials.profile import Profile
from tests.contract.samples import eventually
from tests.qdo.consumer.conftest import POLL_SECONDS
from tests.qdo.consumer.controlled_transport import PATIENCE
from tests.servers.plugin import unique_name
from tests.waiting import join

Make = Callable[..., Consumer]


@pytest.fixture
def client(profile: Profile) -> Iterator[Client]:
    """A client that sends messages."""
    with Client(profile.url, key=profile.key) as opened:
        yield opened


@pytest.fixture
def queue(client: Client) -> str:
    return client.create_queue(partitions=2).name


@pytest.fixture
def make(profile: Profile, queue: str) -> Iterator[Make]:
    """Makes consumers of the queue, of one group; they are closed at the end."""
    group = unique_name("group")
    with contextlib.ExitStack() as opened:

        def make(**options: Any) -> Consumer:  # noqa: ANN401 - of a consumer
            consumer = Consumer(
                AsyncClient(profile.url, key=profile.key),
                group=group,
                queues=[queue],
                settings=ConsumerSettings(settle=0.0, wait=POLL_SECONDS),
                **options,
            )
            opened.callback(consumer.close)
            return consumer

        yield make


def send(client: Client, queue: str, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        client.send(queue, str(number), partition=1)


def numbers(consumer: Consumer, count: int, **options: Any) -> list[int]:  # noqa: ANN401 - of poll
    numbers_seen: list[int] = []
    deadline = time.monotonic() + PATIENCE
    while len(numbers_seen) < count:
        assert time.monotonic() < deadline
        numbers_seen += [int(message.body) for batch in consumer.poll(**options) for message in batch.messages]
    return numbers_seen


def test_it_does_what_the_other_does(make: Make, client: Client, queue: str) -> None:
    """Poll, commit, seek, pause, resume, lag and all properties work as on the async consumer."""
    send(client, queue, 5)
    with make() as consumer:
        assert numbers(consumer, 3, most=3) == [1, 2, 3]
        first, second = sorted(consumer.assignment)
        consumer.commit()
        assert consumer.committed(first) == consumer.position(first)
        assert consumer.position(second) is None
        assert consumer.lag() == {first: 2, second: 0}
        consumer.pause([first])
        assert consumer.paused == {first}
        assert consumer.poll(timeout=0) == []
        consumer.resume([first])
        consumer.seek(first, "earliest")
        assert numbers(consumer, 5) == [1, 2, 3, 4, 5]
        with pytest.raises(InvalidArgument):
            consumer.commit({first: "none"})
        consumer.commit({first: str(consumer.position(first))})
    assert consumer.closing
    assert consumer.poll() == []
    consumer.close()
    with make() as again:
        send(client, queue, 1, first=6)
        assert numbers(again, 1) == [6]


DRIVEN = {
    *("attach", "connected", "coordinator", "ownership", "prepare", "recall", "refused", "rejoin", "unseen"),
    "wanted",
}
"""Methods that only a worker uses."""


def test_both_have_the_same_methods() -> None:
    """Both consumers have the same methods, apart from await and those that only users of the async one need."""
    for name, method in inspect.getmembers(AsyncConsumer):
        if name.startswith("_") or name in DRIVEN:
            continue
        of_blocking = getattr(Consumer, name)
        if callable(method):
            parameters = [each for each in inspect.signature(method).parameters if each not in DRIVEN]
            assert parameters == list(inspect.signature(of_blocking).parameters), name
    of_async, of_blocking = (inspect.signature(kind).parameters for kind in (AsyncConsumer, Consumer))
    assert list(of_async) == list(of_blocking)


def test_callbacks_may_use_the_consumer(make: Make, client: Client, queue: str) -> None:
    """Callbacks run in threads of their own, so that a commit in on_revoke does not wait for itself."""
    send(client, queue, 3)
    notified: list[str] = []
    threads = set()

    def on_assign(partitions: frozenset[Partition]) -> None:
        notified.append("assigned")
        threads.add(threading.current_thread())

    def on_revoke(partitions: frozenset[Partition]) -> None:
        if 1 in {partition.number for partition in partitions}:
            consumer.commit()
            notified.append("committed")

    consumer = make(on_assign=on_assign, on_revoke=on_revoke)
    with consumer:
        numbers(consumer, 3)
    assert notified == ["assigned", "committed"]
    assert threading.current_thread() not in threads
    with make() as again:
        send(client, queue, 1, first=4)
        assert numbers(again, 1) == [4]


def test_another_thread_may_wake_and_close(make: Make) -> None:
    """A poll without end returns when another thread wakes or closes the consumer."""
    consumer = make()
    for end in (consumer.wake, consumer.close):
        if end == consumer.wake:
            consumer.start()
        timer = threading.Timer(0.1, end)
        timer.start()
        assert consumer.poll(timeout=None) == []
        join(timer)
    with pytest.raises(NotOwner, match="closed"):
        consumer.commit()


def test_who_was_not_started_says_so(make: Make) -> None:
    """A consumer that was not started says so in its error, and cannot be started twice."""
    consumer = make()
    with pytest.raises(InvalidArgument, match="not started"):
        consumer.poll()
    consumer.start()
    with pytest.raises(InvalidArgument, match="once"):
        consumer.start()
    consumer.close()
    with pytest.raises(InvalidArgument, match="once"):
        consumer.start()


def test_a_start_that_fails_leaves_nothing_behind(make: Make, profile: Profile, tmp_path: Path) -> None:
    """A start that fails leaves neither a thread nor a member."""
    before = set(threading.enumerate())
    consumer = Consumer(AsyncClient(profile.url, key="wrong"), group="g", queues=["q"])
    with pytest.raises(Exception, match="401"):
        consumer.start()
    assert eventually(lambda: set(threading.enumerate()) <= before)  # A link's thread announces its end before it ends.


async def test_the_thread_of_a_callback_that_is_cancelled_is_waited_for() -> None:
    """The thread of a cancelled callback is waited for: it cannot be stopped, and the next must not run beside it."""
    go = threading.Event()

    def wait(_: frozenset[Partition]) -> None:
        assert go.wait(PATIENCE)

    callback = _run_in_thread(wait)
    assert callback is not None
    call = asyncio.ensure_future(callback(frozenset()))
    await asyncio.sleep(0)
    call.cancel()
    assert await asyncio.wait({call}, timeout=0.05) == (set(), {call})
    go.set()
    await asyncio.wait({call}, timeout=PATIENCE)
    assert call.cancelled()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals for threads here")
def test_ctrl_c_ends_a_poll_and_nothing_else(make: Make, client: Client, queue: str) -> None:
    """Ctrl-C ends the poll only; the consumer goes on as if poll had not been called."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background tasks
    with contextlib.ExitStack() as restored, make() as consumer:
        restored.callback(signal.signal, signal.SIGINT, before)
        main = threading.get_ident()
        for first in (1, 2, 3):
            timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - on a busy machine it comes before the poll begins
                timer.start()
                consumer.poll(timeout=None)
            join(timer)
            send(client, queue, 1, first=first)
            assert numbers(consumer, 1) == [first]


def test_after_a_fork_it_belongs_to_the_parent(make: Make, client: Client, queue: str) -> None:
    """After a fork the child can neither use nor close the consumer, and the parent is not affected."""
    with make() as consumer:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                consumer.close()
                consumer.wake()
                try:
                    consumer.poll()
                except InvalidArgument:
                    os.write(write, b"refused")
            finally:
                os._exit(0)
        os.close(write)
        assert os.waitpid(child, 0)[1] == 0
        with os.fdopen(read, "rb") as answer:
            assert answer.read() == b"refused"
        send(client, queue, 1)
        assert numbers(consumer, 1) == [1]
        consumer.commit()


def test_a_call_from_its_own_loop_is_refused() -> None:
    """A call from the consumer's own loop is refused, because it would wait for itself forever."""
    thread = LoopThread("consumer")

    async def nothing() -> None:
        """Does nothing."""

    async def blocking() -> None:
        thread.call(nothing())

    with pytest.raises(InvalidArgument, match="own event loop"):
        thread.call(blocking())
    thread.stop()
    thread.stop()
    with pytest.raises(NotOwner):
        thread.call(nothing())


def test_a_program_that_forgets_to_close_still_ends(profile: Profile, tmp_path: Path, queue: str) -> None:
    """A program that forgets to close still ends: the thread keeps no process alive."""
    program = f"""
import qdo
from queuey.client import AsyncClient
client = AsyncClient({profile.url!r}, key={profile.key!r})
consumer = qdo.Consumer(client, group={unique_name("group")!r}, queues=[{queue!r}])
consumer.start()
print(consumer.poll(timeout=0))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "[]\n"
    assert not done.stderr

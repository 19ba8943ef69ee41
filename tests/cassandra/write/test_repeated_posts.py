"""The use case of posts on real Cassandra: what a writer takes back is posted anew, and readers are shown it once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from queuey.errors import QueueNotFound, StoreUnavailable, WriteUndone
from queuey.ids import Position
from queuey.messages import PostResult, Queue
from queuey.metrics import Metrics
from queuey.service import Draft, Limits, QueueAccess
from queuey.service.core import Core
from queuey.service.messages import MessageUseCases
from tests.cassandra.interposed import ALWAYS, DELETES, INSERTS, PATIENCE
from tests.cassandra.scene import TTL, D, Process, Reader, S, Scene, W


class SceneCore(Core):
    """A core whose time is that of a scene's process.

    Args:
        process: The process.
    """

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def boottime(self) -> float:
        """See the base class."""
        return self._process.store._clock.boottime()


class Posting:
    """The use cases of a process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.core = SceneCore(process)
        self.use_cases = MessageUseCases(process.store, Limits(), Metrics(), self.core)

    def begin(self, queue: Queue, *drafts: Draft, key: str | None = None) -> Future[PostResult]:
        """Begins a post as a request does: again with a fresh row if that has changed."""
        end: Future[PostResult] = Future()
        access = QueueAccess(self.process.store, queue, lambda _queue: None, self.core.in_thread)
        given = drafts or (Draft("x", partition=1),)

        async def post() -> None:
            try:
                end.set_result(await access.apply(lambda row: self.use_cases.post(row, given, key=key)))
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                end.set_exception(error)

        self.core.tell(lambda: self.core.spawn(post()))
        return end

    def post(self, queue: Queue, *drafts: Draft, key: str | None = None) -> PostResult:
        """Posts."""
        return self.begin(queue, *drafts, key=key).result(PATIENCE)

    @property
    def repeated(self) -> float:
        """How many posts were repeated."""
        return self.use_cases.statistics()["posts_repeated_total"]


@pytest.fixture
def posting(scene: Scene) -> Posting:
    """One process."""
    return Posting(scene.start())


def shown(scene: Scene, queue: Queue, *partitions: int) -> list[tuple[int, Position, str]]:
    """What readers of another process are shown who began before, now that all is settled: places and bodies."""
    scene.world.advance(D + S)
    reading = scene.processes[-1]
    found = []
    for partition in partitions or (1,):
        reader = Reader(reading, queue, partition=partition)
        reader.go_on()
        found += [(partition, *one) for one in zip(reader.seen, reader.bodies, strict=True)]
    return found


def lost(scene: Scene, process: Process) -> None:
    """The answer is lost."""
    process.wire.lose(INSERTS)


def late(scene: Scene, process: Process) -> None:
    """The answer comes after the deadline."""
    process.wire.meanwhile(INSERTS, lambda: scene.world.advance(W + 0.1))


FAILURES = pytest.mark.parametrize("fail", [lost, late], ids=lambda fail: str(fail.__name__))
Fail = Callable[[Scene, Process], None]


@FAILURES
@pytest.mark.parametrize("key", [None, "key"], ids=["plain", "under a key"])
def test_acknowledged(scene: Scene, posting: Posting, fail: Fail, key: str | None) -> None:
    """A write that times out and is undone is made again and acknowledged; readers are shown the second one only."""
    scene.start()
    queue = scene.queue(posting.process, ttl=TTL)
    fail(scene, posting.process)
    result = posting.post(queue, key=key)
    assert posting.repeated == 1
    [(partition, position)] = result.locations
    assert shown(scene, queue) == [(partition, position, "x")]
    assert posting.process.store.statistics()["store_undo_writes_total"] >= 1
    if key is not None:
        assert posting.post(queue, key=key).locations == result.locations


def test_batch(scene: Scene, posting: Posting) -> None:
    """A batch is repeated whole, over all its partitions, if one of them failed."""
    queue = scene.queue(posting.process, ttl=TTL, partitions=2)
    lost(scene, posting.process)
    drafts = [Draft(str(number), partition=number % 2 + 1) for number in range(6)]
    result = posting.post(queue, *drafts)
    assert posting.repeated == 1
    there = shown(scene, queue, 1, 2)
    assert [body for _, _, body in there] == ["0", "2", "4", "1", "3", "5"]
    assert {(partition, position) for partition, position, _ in there} == {*result.locations}


def test_without_budget(scene: Scene, posting: Posting) -> None:
    """Where too many were repeated the error is told: outcome none, and nothing is there."""
    queue = scene.queue(posting.process, ttl=TTL)
    lost(scene, posting.process)
    posting.post(queue)
    lost(scene, posting.process)
    with pytest.raises(WriteUndone) as caught:
        posting.post(queue)
    assert (caught.value.outcome, caught.value.code, posting.repeated) == ("none", StoreUnavailable.code, 1)
    assert len(shown(scene, queue)) == 1


@pytest.mark.parametrize("key", [None, "key"], ids=["plain", "under a key"])
def test_fails_twice(scene: Scene, posting: Posting, key: str | None) -> None:
    """The second failure is told."""
    queue = scene.queue(posting.process, ttl=TTL)
    posting.process.wire.lose(INSERTS, 2)
    with pytest.raises(WriteUndone):
        posting.post(queue, key=key)
    assert posting.repeated == 1
    assert shown(scene, queue) == []


@pytest.mark.parametrize("key", [None, "key"], ids=["plain", "under a key"])
def test_in_doubt(scene: Scene, posting: Posting, key: str | None) -> None:
    """What is not undone in time may have been read, and is not repeated."""
    queue = scene.queue(posting.process, ttl=TTL)
    lost(scene, posting.process)
    gate = posting.process.wire.hold(DELETES)
    end = posting.begin(queue, key=key)
    gate.reached()
    scene.world.advance(D - S + 0.1)
    gate.open()
    error = end.exception(PATIENCE)
    assert isinstance(error, StoreUnavailable)
    assert (type(error) is WriteUndone, error.outcome, posting.repeated) == (False, "unknown", 0)


@pytest.mark.parametrize("key", [None, "key"], ids=["plain", "under a key"])
def test_refused(scene: Scene, posting: Posting, key: str | None) -> None:
    """What Cassandra refused was not sent, and is not repeated."""
    queue = scene.queue(posting.process, ttl=TTL)
    posting.process.wire.fail(INSERTS, ALWAYS)
    with pytest.raises(StoreUnavailable) as caught:
        posting.post(queue, key=key)
    assert (type(caught.value) is WriteUndone, caught.value.outcome, posting.repeated) == (False, "none", 0)


@pytest.mark.parametrize("change", ["purged", "deleted"])
def test_changed_meanwhile(scene: Scene, posting: Posting, change: str) -> None:
    """If the queue changes between both attempts, the second one meets the new row, as a client's own would."""
    other = scene.start()
    queue = scene.queue(posting.process, ttl=TTL)
    process, changed = posting.process, []

    def meddle() -> None:
        if change == "purged":
            changed.append(other.store.purge_queue(queue))
        else:
            other.store.delete_queue(queue)

    lost(scene, process)
    process.wire.meanwhile(DELETES, meddle)
    end = posting.begin(queue)
    if change == "deleted":
        assert isinstance(end.exception(PATIENCE), QueueNotFound)
    else:
        result = end.result(PATIENCE)
        assert [(one, position) for one, position, _ in shown(scene, changed[0])] == result.locations
    assert posting.repeated == 1

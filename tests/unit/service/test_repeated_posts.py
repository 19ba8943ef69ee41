"""Posts that the store has undone: which are repeated, how often, and the caller's answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
import pytest

from queuey import ids
from queuey.errors import InvalidRequest, Outcome, QueueChanged, StoreClosed, StoreUnavailable, WriteUndone
from queuey.messages import NewMessage, PostKey, PostResult, Queue
from queuey.metrics import Metrics
from queuey.service import Draft, Limits
from queuey.service.core import Core
from queuey.service.messages import AnyDraft, MessageUseCases, Placed, PlainDraft, RepeatBudget
from queuey.storage import Store
from queuey.storage.calls import GivenUp
from tests.replacing import replace

QUEUE = Queue(application="acme", name="orders", uid=1, qid=1, partitions=4, ttl=60)
T = TypeVar("T")
WITHIN = 0.75
"""Seconds within which the store ends a post, with its undo."""
Post = tuple[list[NewMessage], PostKey | None, ids.Position | None]


class FakeCore(Core):
    """A core whose time the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def boottime(self) -> float:
        return self.now


class ScriptedStore:
    """Ends each post as a script says, and with success after the end of the script.

    Args:
        core: Its clock, which each failure advances.
        script: Errors; None: the post is never answered, and raises GivenUp when it is cancelled.
    """

    ids_follow_clocks = False
    claim_time = staticmethod(ids.now_ticks)

    def __init__(self, core: FakeCore, *script: Exception | None) -> None:
        self.messages = self.keyed_posts = self.claim_logs = self
        self.posts: list[Post] = []
        self.took = WITHIN
        self.given_up: Outcome = "unknown"
        self.begun = asyncio.Event()
        self._core = core
        self._script = list(script)

    def write_within(self, queue: Queue) -> float:
        return WITHIN

    async def append(
        self, queue: Queue, items: Sequence[NewMessage], *, after: ids.Position | None = None
    ) -> list[ids.Position]:
        return await self._post(items, None, after)

    async def append_once(
        self, queue: Queue, items: Sequence[NewMessage], key: PostKey, *, after: ids.Position | None = None
    ) -> PostResult:
        positions = await self._post(items, key, after)
        places = [(item.partition, position) for item, position in zip(items, positions, strict=True)]
        return PostResult(places, replayed=False)

    async def _post(
        self, items: Sequence[NewMessage], key: PostKey | None, after: ids.Position | None
    ) -> list[ids.Position]:
        self.posts.append((list(items), key, after))
        if self._script:
            if (error := self._script.pop(0)) is not None:
                self._core.now += self.took
                raise error
            self.begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise GivenUp(self.given_up) from None
        return [(len(self.posts), number) for number, _ in enumerate(items)]


def undone() -> WriteUndone:
    return WriteUndone("Cassandra wrote the message too late; the write is undone")


class Posting:
    """The use cases on a scripted store."""

    def __init__(self, *script: Exception | None, deadline: float = 15.0) -> None:
        self.core = FakeCore()
        self.store = ScriptedStore(self.core, *script)
        self.use_cases = MessageUseCases(cast("Store", self.store), Limits(deadline=deadline), Metrics(), self.core)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.core.run(work)

    def post(
        self, *drafts: AnyDraft, queue: Queue = QUEUE, after: ids.Position | None = None, key: str | None = None
    ) -> PostResult:
        return self.run(self.use_cases.post(queue, drafts or (Draft("x"),), after=after, key=key))

    @property
    def repeated(self) -> float:
        return self.use_cases.statistics()["posts_repeated_total"]


def test_under_its_key() -> None:
    """A post under a key is repeated under that key."""
    posting = Posting(undone())
    result = posting.post(Draft("a"), Draft("b"), key="mine")
    first, second = posting.store.posts
    assert first[1] is not None
    assert first[1] == second[1]
    assert not result.replayed
    assert len(result.locations) == 2


@pytest.mark.parametrize("drafts", [(PlainDraft("a"), PlainDraft("b", 9, 2)), (Draft("a"), Draft("b", 9, 2))])
def test_what_a_key_stands_for(drafts: tuple[AnyDraft, ...]) -> None:
    """The content of a keyed post is the caller's message, however it was decoded, without additions of the service."""
    posting = Posting()
    posting.post(*drafts, key="mine")
    [(items, key, _)] = posting.store.posts
    assert key is not None
    assert key.content.hex() == "39d753992eb7326cd28e2b49e19710b6"
    assert [(item.body, item.ttl) for item in items] == [("a", 60), ("b", 9)]
    assert items[1].partition == 2


def test_plain_drafts_are_stored_as_they_are() -> None:
    """A text message is stored as the same object, unless it is to be kept or its queue keeps keys."""
    posting = Posting()
    drafts = [PlainDraft(str(number)) for number in range(8)]
    posting.post(*drafts)
    [(items, *_)] = posting.store.posts
    assert list(map(id, items)) == list(map(id, drafts))
    assert sorted({item.partition for item in items}) == [1, 2, 3, 4]
    kept = msgspec.structs.replace(QUEUE, on_expiry="dead-letter")
    [message] = posting.use_cases._address_drafts(kept, [PlainDraft("a")])
    assert (message.kept, message.ttl) == (True, 60)


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("in doubt", outcome="unknown"),
        StoreUnavailable("too many messages wait"),
        StoreClosed("closed"),
        QueueChanged("orders"),
        InvalidRequest({"after": "too far ahead"}),
        GivenUp("none"),
    ],
    ids=lambda error: f"{type(error).__name__}-{getattr(error, 'outcome', '')}",
)
def test_other_failures(error: Exception) -> None:
    """A post that is in doubt, was refused, or was cancelled is not repeated."""
    posting = Posting(error)
    with pytest.raises(type(error)):
        posting.post()
    assert (len(posting.store.posts), posting.repeated) == (1, 0)


@pytest.mark.parametrize("left", [WITHIN, WITHIN - 0.001])
def test_within_the_time_of_a_request(left: float) -> None:
    """A post is repeated only if a second attempt, with its undo, fits into the time of a request."""
    posting = Posting(undone(), deadline=15.0)
    posting.store.took = 15.0 - left
    if left >= WITHIN:
        posting.post()
    else:
        with pytest.raises(WriteUndone):
            posting.post()
    assert len(posting.store.posts) == (2 if left >= WITHIN else 1)


@pytest.mark.parametrize("first", [(), (undone(),)], ids=["at first", "repeated"])
def test_given_up(first: tuple[WriteUndone, ...]) -> None:
    """A cancelled post ends, in the first attempt as in the second."""
    posting = Posting(*first, None)
    posting.store.given_up = "none"

    async def leave() -> None:
        task = asyncio.ensure_future(posting.use_cases.post(QUEUE, [Draft("x")]))
        await asyncio.wait_for(posting.store.begun.wait(), 60)
        task.cancel()
        await task

    with pytest.raises(GivenUp) as caught:
        posting.run(leave())
    assert caught.value.outcome == "none"
    assert len(posting.store.posts) == len(first) + 1


def test_ordered_queues_wait_for_the_second_attempt() -> None:
    """In an ordered queue the post returns when all clocks are past the ids of its messages."""
    posting = Posting(undone())
    settled: list[Placed] = []

    async def settle(_self: MessageUseCases, _queue: Queue, placed: Iterable[Placed]) -> None:
        settled.extend(placed)

    with replace(MessageUseCases.settle_order, settle):
        result = posting.post(Draft("a", key="k"), queue=msgspec.structs.replace(QUEUE, kind="ordered"))
    assert settled == [(0.0, result.locations[0])]
    assert result.locations[0][1] == (2, 0)


def test_kept_messages() -> None:
    """In a queue that keeps expired messages, messages without their own TTL are kept, and so is their key."""
    posting, drafts = Posting(), (Draft("a"), Draft("b", ttl=70))
    for on_expiry in ("drop", "dead-letter"):
        posting.post(*drafts, queue=msgspec.structs.replace(QUEUE, on_expiry=on_expiry), key="mine")
    kept = [([item.kept for item in items], key and key.seconds) for items, key, _ in posting.store.posts]
    assert kept == [([False, False], 70), ([True, False], Limits().idempotency_ttl)]


def test_order_is_settled_by_the_clock_of_ids() -> None:
    """A post to an ordered queue waits for the clock of ids, whatever the machine's clock says."""
    now = ids.now_ticks() + 100 * ids.TICKS_PER_SECOND
    claim_logs = SimpleNamespace(claim_time=lambda: now)
    store = SimpleNamespace(ids_follow_clocks=True, clock_difference=0.05, claim_logs=claim_logs)
    core = FakeCore()
    use_cases = MessageUseCases(cast("Store", store), Limits(), Metrics(), core)
    ordered = msgspec.structs.replace(QUEUE, kind="ordered")
    began = time.monotonic()
    asyncio.run(use_cases.settle_order(ordered, [(0.0, (1, (now, 0)))]))
    assert 0.05 <= time.monotonic() - began < 10


def test_without_budget() -> None:
    """A second undone post in the same second is not repeated: its caller gets the error."""
    posting = Posting(undone(), undone(), undone(), undone())
    posting.store.took = 0.4
    for tried, repeats in ((2, 1), (3, 1)):
        with pytest.raises(WriteUndone):
            posting.post()
        assert (len(posting.store.posts), posting.repeated) == (tried, repeats)
    posting.core.now += 1.0
    posting.post()
    assert posting.repeated == 2


def test_budget() -> None:
    """One post is repeated per second, or a tenth of that second's posts; earlier seconds do not count."""
    budget = RepeatBudget()
    assert [budget.try_acquire(10.0) for _ in range(3)] == [True, False, False]
    assert not budget.try_acquire(10.999)
    assert budget.try_acquire(11.0)
    for number in range(100):
        budget.record_post(11.5 + number / 1000)
    assert sum(budget.try_acquire(11.6) for _ in range(20)) == 9
    assert sum(budget.try_acquire(12.1) for _ in range(20)) == 1
    assert budget.repeated == 12
    budget.record_post(20.0)
    assert (len(budget._posts), sum(budget.try_acquire(20.0) for _ in range(20))) == (1, 1)

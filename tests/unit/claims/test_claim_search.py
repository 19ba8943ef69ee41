"""A claim over several partitions, with logs whose answers the test decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from queuey.claims.polls import Poll
from queuey.claims.receipts import ClaimReceipt
from queuey.errors import InvalidRequest, Outcome, StoreUnavailable, TooManyClaims
from queuey.messages import Message, Queue
from queuey.service.claims.claiming import ClaimSearch, PartitionRotation, PiggybackedAck, group_by_partition
from queuey.service.claims.log_cache import Key, LogCache
from queuey.service.claims.requests import PollRequest, Request, SettleRequest
from tests.sim.world import Process, SimulatedCore, World, begin

QUEUE = Queue(application="a", name="q", uid=1, qid=7, partitions=3)


class Scene:
    """A search, its requests, and its results for the caller."""

    def __init__(self, poll: Poll, *, gather: bool = True, receipts: Sequence[ClaimReceipt] = ()) -> None:
        self.world = World(1)
        core = SimulatedCore(Process(self.world, 0.0), 0.001)
        self.ack = PiggybackedAck(receipts)
        self.asked: list[tuple[int, Request]] = []
        self.told: list[tuple[Any, Exception | None]] = []
        turns = PartitionRotation(lambda: 0.0, lambda: 0.0)
        search = ClaimSearch(cast(LogCache, self), turns, QUEUE, poll, gather=gather)
        with core.loop.running():
            self.settles = {
                at: SettleRequest(QUEUE, "acknowledge", some) for at, some in group_by_partition(receipts).items()
            }
        work = search.run([1, 2, 3], self.ack, self.settles, lambda _began: False)
        self._give_up = begin(core, work, lambda *end: self.told.append(end))
        self._let()

    def _let(self) -> None:
        self.world.run(self.world.now + 1.0)

    def give_up(self) -> StoreUnavailable | None:
        self._give_up()
        self._let()
        return cast("StoreUnavailable | None", self.told[-1][1])

    def add(self, key: Key, *requests: Request) -> None:
        self.asked += [(key[1], request) for request in requests]

    def refuse(self, error: Exception) -> None:
        self.settles[RECEIPT.partition].answer(None, error)
        self._let()

    def answer(self, *bodies: str, error: Exception | None = None) -> None:
        """Answers the last poll with messages, or with an error."""
        number, request = next((at, one) for at, one in reversed(self.asked) if isinstance(one, PollRequest))
        messages = [Message(10 * number + at, 0, number, 99, body) for at, body in enumerate(bodies)]
        deliveries = [
            (message, 1, ClaimReceipt(number, *message.position, 5), 60_000, 0, False) for message in messages
        ]
        request.decided = self.world.now
        request.answer(None if error else deliveries, error)
        self._let()

    @property
    def bodies(self) -> list[str]:
        [(deliveries, error)] = self.told
        assert error is None
        return [one.message.body for one in deliveries]

    @property
    def released(self) -> list[tuple[int, list[int]]]:
        return [
            (number, [receipt.ticks for receipt in request.receipts])
            for number, request in self.asked
            if isinstance(request, SettleRequest) and request.kind == "release" and request.begun is None
        ]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), TooManyClaims("full")])
def test_what_was_found_before_an_error(error: Exception) -> None:
    """After an error the caller gets the messages that were already claimed for it, or else the error."""
    scene, empty = Scene(Poll(5, 60, 10_000)), Scene(Poll(5, 60, 10_000))
    scene.answer("a")
    scene.answer(error=error)
    if isinstance(error, TooManyClaims):
        scene.answer()
    assert scene.bodies == ["a"]
    for _ in range(3 if isinstance(error, TooManyClaims) else 1):
        empty.answer(error=error)
    assert empty.told == [(None, error)]


@pytest.mark.parametrize(("ttl", "outcome"), [(60, "unknown"), (0, "none")])
def test_giving_up_is_in_doubt_once_something_was_claimed(ttl: float, outcome: Outcome) -> None:
    """A cancelled search has the outcome "none" only if no partition has counted a delivery."""
    scene = Scene(Poll(5, ttl, 10_000))
    scene.answer("a")
    error = scene.give_up()
    assert error is not None
    assert error.outcome == outcome


RECEIPT = ClaimReceipt(2, 5, 0, 1)


@pytest.mark.parametrize("found", [True, False])
def test_nothing_is_claimed_if_the_acknowledgement_fails(found: bool) -> None:  # noqa: FBT001 - a case
    """If the acknowledgement fails, messages claimed before or after are released, and its error is raised."""
    scene = Scene(Poll(5, 60, 10_000), gather=False, receipts=[RECEIPT])
    if found:
        scene.answer("a")
    error = InvalidRequest({"receipts": "of another queue"})
    scene.refuse(error)
    if not found:
        scene.answer("a")
    assert scene.told == [(None, error)]
    assert scene.released == [(1, [10])]
    assert not scene.ack.in_doubt

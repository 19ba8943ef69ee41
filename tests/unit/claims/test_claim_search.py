"""A claim over several partitions, with logs that answer when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from queuey.claims import ClaimReceipt, Poll, ReceiptStatus, Settlement
from queuey.errors import InvalidRequest, Outcome, StoreUnavailable, TooManyClaims
from queuey.messages import Message, Queue, rendered_bytes
from queuey.service.claims.claiming import ClaimSearch, PiggybackedAck, by_partition
from queuey.service.claims.log_cache import Key, LogCache
from queuey.service.claims.requests import PollRequest, Request, SettleRequest
from queuey.service.claims.turns import PartitionRotation
from tests.sim.world import Process, SimulatedCore, World, begin

QUEUE = Queue(application="a", name="q", uid=1, qid=7, partitions=3)


class Scene:
    """A search, what it has asked for, and what it has told its caller."""

    def __init__(
        self,
        poll: Poll,
        *,
        is_late: Callable[[float], bool] = lambda _began: False,
        gather: bool = True,
        receipts: Sequence[ClaimReceipt] = (),
    ) -> None:
        self.world = World(1)
        core = SimulatedCore(Process(self.world, 0.0), 0.001)
        self.ack = PiggybackedAck(receipts)
        self.asked: list[tuple[int, Request]] = []
        self.told: list[tuple[Any, Exception | None]] = []
        search = ClaimSearch(
            cast(LogCache, self), PartitionRotation(lambda: 0.0, lambda: 0.0), QUEUE, poll, gather=gather
        )
        with core.loop.running():
            settles = {at: SettleRequest(QUEUE, "acknowledge", some) for at, some in by_partition(receipts).items()}
        self._settles = settles
        self._give_up = begin(core, search.run([1, 2, 3], self.ack, settles, is_late), self._done)
        self._let()

    def _let(self) -> None:
        self.world.run(self.world.now + 1.0)

    def give_up(self) -> StoreUnavailable | None:
        """Gives the search up; returns its error, if it has one now."""
        self._give_up()
        self._let()
        return cast("StoreUnavailable | None", self.told[-1][1])

    def add(self, key: Key, *requests: Request) -> None:
        """Takes requests, as logs do."""
        self.asked += [(key[1], request) for request in requests]

    def _done(self, value: object, error: Exception | None) -> None:
        self.told.append((value, error))

    def settle(self, settled: list[Settlement] | None, error: Exception | None = None) -> None:
        """Answers the acknowledgement."""
        for request in self._settles.values():
            request.answer(settled, error)
        self._let()

    def answer(self, *bodies: str, error: Exception | None = None) -> Poll:
        """Answers the last poll; returns what it asked for."""
        number, request = next((at, one) for at, one in reversed(self.asked) if isinstance(one, PollRequest))
        messages = [Message(10 * number + at, 0, number, 99, body) for at, body in enumerate(bodies)]
        given = [(one, 1, ClaimReceipt(number, *one.position, 5), 60_000) for one in messages]
        request.decided = self.world.now
        request.answer(None if error else given, error)
        self._let()
        return request.poll

    @property
    def bodies(self) -> list[str]:
        """The bodies that the caller got."""
        [(found, error)] = self.told
        assert error is None
        return [one.message.body for one in found]

    @property
    def released(self) -> list[tuple[int, list[int]]]:
        """Partitions and times of the messages whose claims were ended."""
        return [
            (number, [receipt.ticks for receipt in request.receipts])
            for number, request in self.asked
            if isinstance(request, SettleRequest) and request.kind == "release"
        ]


def test_one_partition_is_enough() -> None:
    """Unless it is to gather, a claim ends with the first partition that has some."""
    scene = Scene(Poll(5, 60, 10_000), gather=False)
    scene.answer()
    scene.answer("a")
    assert (scene.bodies, [number for number, _ in scene.asked]) == (["a"], [1, 2])


def test_gathering_until_there_are_enough() -> None:
    """It goes on with what is still wanted, in messages and in bytes."""
    scene = Scene(Poll(5, 60, 10_000))
    scene.answer("aa", "b")
    rest = scene.answer("c")
    assert (rest.limit, rest.max_bytes) == (3, 10_000 - rendered_bytes("aa", None) - rendered_bytes("b", None))
    scene.answer("d", "e")
    assert scene.bodies == ["aa", "b", "c", "d", "e"]


@pytest.mark.parametrize("poll", [Poll(2, 60, 10_000), Poll(9, 60, 2)])
def test_gathering_ends_with_what_was_wanted(poll: Poll) -> None:
    """No further partition is asked when there are as many messages, or bytes, as wanted."""
    scene = Scene(poll)
    scene.answer("a", "b")
    assert (scene.bodies, len(scene.asked)) == (["a", "b"], 1)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), TooManyClaims("full")])
def test_what_was_found_before_an_error(error: Exception) -> None:
    """The caller gets the messages that are claimed for it; without any it gets the error."""
    scene, empty = Scene(Poll(5, 60, 10_000)), Scene(Poll(5, 60, 10_000))
    scene.answer("a")
    scene.answer(error=error)
    if isinstance(error, TooManyClaims):
        scene.answer()
    assert scene.bodies == ["a"]
    for _ in range(3 if isinstance(error, TooManyClaims) else 1):
        empty.answer(error=error)
    assert empty.told == [(None, error)]


def test_giving_up_releases_what_was_found() -> None:
    """Nobody waits for these messages any more, so others get them at once."""
    scene = Scene(Poll(5, 60, 10_000))
    scene.answer("a", "b")
    scene.give_up()
    assert scene.released == [(1, [10, 11])]


@pytest.mark.parametrize(("ttl", "outcome"), [(60, "unknown"), (0, "none")])
def test_giving_up_is_in_doubt_once_something_was_claimed(ttl: float, outcome: Outcome) -> None:
    """Who gives up is told that nothing was done only if no partition has counted a delivery."""
    scene = Scene(Poll(5, ttl, 10_000))
    scene.answer("a")
    error = scene.give_up()
    assert error is not None
    assert error.outcome == outcome


def test_nothing_is_claimed_with_no_time() -> None:
    """What is only shown needs no release."""
    scene = Scene(Poll(5, 0, 10_000))
    scene.answer("a", "b")
    scene.give_up()
    assert scene.released == []


def test_claims_that_would_be_over() -> None:
    """If gathering has taken so long that the first claims may be over, the caller gets none of them."""
    scene = Scene(Poll(5, 60, 10_000), is_late=lambda _began: True)
    scene.answer("a")
    scene.answer("b")
    scene.answer()
    assert scene.released == [(1, [10]), (2, [20])]
    [(found, error)] = scene.told
    assert (found, isinstance(error, StoreUnavailable)) == (None, True)


RECEIPT = ClaimReceipt(2, 5, 0, 1)
SETTLED = [Settlement(RECEIPT, ReceiptStatus.DONE)]


@pytest.mark.parametrize("first", ["messages", "receipts"])
def test_answers_when_both_have_ended(first: str) -> None:
    """The caller learns of its messages when the receipts are settled, too, whichever comes first."""
    scene = Scene(Poll(5, 60, 10_000), gather=False, receipts=[RECEIPT])
    steps: list[Callable[[], object]] = [lambda: scene.answer("a"), lambda: scene.settle(SETTLED)]
    for step in steps if first == "messages" else steps[::-1]:
        assert scene.told == []
        step()
    assert scene.bodies == ["a"]
    assert (scene.ack.settled, scene.ack.in_doubt, scene.ack.pending) == (SETTLED, True, False)


@pytest.mark.parametrize("found", [True, False])
def test_nothing_is_claimed_if_the_acknowledgement_fails(found: bool) -> None:  # noqa: FBT001 - a case
    """What is found is released, before or after; the error is that of the receipts."""
    scene = Scene(Poll(5, 60, 10_000), gather=False, receipts=[RECEIPT])
    if found:
        scene.answer("a")
    error = InvalidRequest({"receipts": "of another queue"})
    scene.settle(None, error)
    if not found:
        scene.answer("a")
    assert scene.told == [(None, error)]
    assert scene.released == [(1, [10])]
    assert not scene.ack.in_doubt


def test_a_claim_that_fails_after_the_acknowledgement() -> None:
    """The error leaves open what was done, and another try acknowledges nothing."""
    scene = Scene(Poll(5, 60, 10_000), receipts=[RECEIPT])
    scene.answer(error=StoreUnavailable("away"))
    scene.settle(SETTLED)
    [(found, error)] = scene.told
    assert (found, str(error)) == (None, "away")
    assert scene.ack.in_doubt
    assert not scene.ack.pending


def test_an_acknowledgement_that_takes_too_long() -> None:
    """Claims that would be over when the caller learns of them are released."""
    scene = Scene(Poll(5, 60, 10_000), is_late=lambda _began: True, gather=False, receipts=[RECEIPT])
    scene.answer("a")
    scene.settle(SETTLED)
    assert scene.released == [(1, [10])]
    [(found, error)] = scene.told
    assert (found, isinstance(error, StoreUnavailable)) == (None, True)

"""A claim over several partitions, with logs that answer when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from queuey.claims import ClaimReceipt, Poll, ReceiptStatus, Settlement
from queuey.errors import InvalidRequest, Outcome, StoreUnavailable, TooManyClaims
from queuey.messages import Message, Queue, rendered_bytes
from queuey.service.claims.claiming import ClaimSearch, JoinedAck, begin_after
from queuey.service.claims.log_cache import Key, LogCache
from queuey.service.claims.requests import PollRequest, Request, SettleRequest
from queuey.service.claims.turns import Turns

QUEUE = Queue(application="a", name="q", uid=1, qid=7, partitions=3)


def test_what_succeeds_at_once_begins_the_next() -> None:
    """A check that answers before it returns holds up nothing, and giving up afterwards gives up what it began."""
    ended: list[object] = []

    def check(told: Callable[[object, Exception | None], None]) -> Callable[[], Outcome]:
        told(None, None)
        return lambda: "none"

    def begin() -> None:
        give_up = begin_after(check, lambda: lambda: "unknown", lambda *end: ended.append(end))
        ended.append(give_up())

    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    thread.join(60)
    assert ended == ["unknown"]


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
        self.ack = JoinedAck(receipts)
        self.asked: list[tuple[int, Request]] = []
        self.told: list[tuple[Any, Exception | None]] = []
        turns = Turns(lambda: 0.0, lambda: 0.0)
        logs = cast(LogCache, self)
        self.search = ClaimSearch(logs, turns, QUEUE, [1, 2, 3], poll, self._done, is_late, self.ack, gather=gather)
        self.give_up = self.search.start()

    def add(self, key: Key, request: Request) -> None:
        """Takes a request, as logs do."""
        self.asked.append((key[1], request))

    def _done(self, value: object, error: Exception | None) -> None:
        self.told.append((value, error))

    def answer(self, *bodies: str, error: Exception | None = None) -> Poll:
        """Answers the last poll; returns what it asked for."""
        number, request = self.asked[-1]
        assert isinstance(request, PollRequest)
        messages = [Message(10 * number + at, 0, number, 99, body) for at, body in enumerate(bodies)]
        given = [(one, 1, ClaimReceipt(number, *one.position, 5), 60_000) for one in messages]
        request.answer(None if error else given, error)
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
    assert scene.told == []


@pytest.mark.parametrize(("ttl", "outcome"), [(60, "unknown"), (0, "none")])
def test_giving_up_is_in_doubt_once_something_was_claimed(ttl: float, outcome: Outcome) -> None:
    """Who gives up is told that nothing was done only if no partition has counted a delivery."""
    scene = Scene(Poll(5, ttl, 100))
    scene.answer("a")
    assert scene.give_up() == outcome


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
    steps: list[Callable[[], object]] = [lambda: scene.answer("a"), lambda: scene.search.acknowledged(SETTLED, None)]
    for step in steps if first == "messages" else steps[::-1]:
        assert scene.told == []
        step()
    assert scene.bodies == ["a"]
    assert (scene.ack.settled, scene.ack.in_doubt, scene.ack.pending) == (SETTLED, True, False)


@pytest.mark.parametrize("found", [True, False])
def test_nothing_is_claimed_if_the_acknowledgement_fails(found: bool) -> None:  # noqa: FBT001 - a case
    """What was found is released, or no longer wanted; the error is that of the receipts."""
    scene = Scene(Poll(5, 60, 10_000), gather=False, receipts=[RECEIPT])
    if found:
        scene.answer("a")
    error = InvalidRequest({"receipts": "of another queue"})
    scene.search.acknowledged(None, error)
    assert scene.told == [(None, error)]
    assert scene.released == ([(1, [10])] if found else [])
    assert scene.asked[0][1].answered
    assert not scene.ack.in_doubt
    scene.search.start()
    assert len([one for _, one in scene.asked if isinstance(one, PollRequest)]) == 1


def test_a_claim_that_fails_after_the_acknowledgement() -> None:
    """The error leaves open what was done, and another try acknowledges nothing."""
    scene = Scene(Poll(5, 60, 10_000), receipts=[RECEIPT])
    scene.answer(error=StoreUnavailable("away"))
    scene.search.acknowledged(SETTLED, None)
    [(found, error)] = scene.told
    assert (found, str(error)) == (None, "away")
    assert scene.ack.in_doubt
    assert not scene.ack.pending


def test_an_acknowledgement_that_takes_too_long() -> None:
    """Claims that would be over when the caller learns of them are released."""
    scene = Scene(Poll(5, 60, 10_000), is_late=lambda _began: True, gather=False, receipts=[RECEIPT])
    scene.answer("a")
    scene.search.acknowledged(SETTLED, None)
    assert scene.released == [(1, [10])]
    [(found, error)] = scene.told
    assert (found, isinstance(error, StoreUnavailable)) == (None, True)

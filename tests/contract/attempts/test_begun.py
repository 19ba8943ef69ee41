"""Attempts: a delivery that was given back before work on its message began does not count as one.

A message whose claim has expired is suspected to have ended its worker, and delivered alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from queuey.claims.claims import ClaimUseCases, HandlerFailure
from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.rules.receipts import MAX_UNCOUNTED, ClaimReceipt, ReceiptStatus
from queuey.model.errors import StoreUnavailable
from queuey.model.messages import Backoff
from queuey.storage import Store
from tests.backends import Clock
from tests.blocking import blocking
from tests.contract.attempts.test_attempts import wait_for_dead_letter
from tests.contract.claims.test_claims import enter
from tests.contract.results.test_results import Scene as ResultScene
from tests.contract.samples import append_bodies, make_queue
from tests.replacing import replace

MOST = 3


class Scene:
    """A queue whose messages become dead letters after ``MOST`` attempts, and a process."""

    def __init__(self, store: Store, *bodies: str, **options: Any) -> None:  # noqa: ANN401 - any option of a queue
        backoff = Backoff(first=10, factor=2, most=100, jitter=0)
        defaults: dict[str, Any] = {"max_deliveries": MOST, "backoff": backoff}
        self.queue = make_queue(store, **defaults | options)
        self.places = append_bodies(store, self.queue, *bodies)
        self.store = store
        self.use(store)

    def use(self, store: Store) -> None:
        self.service, self.access = enter(store, self.queue)
        self.claims = blocking(self.service.claims)

    def claim(self, limit: int = 1, ttl: float = 60, **options: Any) -> list[ClaimDelivery]:  # noqa: ANN401 - passed on
        return self.claims.claim(self.access, limit=limit, ttl=ttl, **options)

    def claim_counts(self) -> tuple[int, int]:
        """Claims the message; returns the number of the attempt and that of all deliveries."""
        [self.last] = self.claim()
        return self.last.deliveries, self.last.handed_out

    def release(self, *, begun: bool, delay: float | None = None, reason: str = "") -> float:
        """Releases the last claim; returns the seconds until its message is delivered again."""
        why = HandlerFailure(reason) if reason else None
        receipts: list[ClaimReceipt] = [self.last.receipt]
        [settled] = self.claims.release(self.access, receipts, delay, why, begun=begun)
        assert settled.status is ReceiptStatus.ACCEPTED
        return round(settled.expires - self.store.clock.now_ms() / 1000, 1) if settled.expires else 0.0


WAYS: dict[str, tuple[Callable[[Scene], object], float]] = {
    "at once": (lambda scene: scene.release(begun=False), 0),
    "twice": (lambda scene: [scene.release(begun=False) for _ in range(2)], 0),
    "later": (lambda scene: scene.release(begun=False, delay=20), 30),
    "later, then at once": (lambda scene: [scene.release(begun=False, delay=20), scene.release(begun=False)], 0),
    "after its claim has expired": (lambda scene: scene.release(begun=False), 0),
    "with a reason": (lambda scene: scene.release(begun=False, reason="NotMine"), 30),
    "with all claims": (lambda scene: scene.claims.release_all(scene.access), 0),
}
"""Ways to give a message back, with the seconds after which it is delivered again."""


@pytest.mark.parametrize("way", WAYS)
def test_a_delivery_given_back_does_not_count(store: Store, other: Store, clock: Clock, way: str) -> None:
    """However a message is given back before work began, its next delivery is the same attempt, for every process."""
    scene = Scene(store, "a")
    give_back, seconds = WAYS[way]
    for returned in range(3):
        assert scene.claim_counts() == (1, 1 + returned)
        clock.advance(70 if way == "after its claim has expired" else 0)
        give_back(scene)
        clock.advance(seconds)
        scene.use(other if returned % 2 else store)
    assert scene.claim_counts() == (1, 4)
    scene.release(begun=True)
    assert scene.claim_counts() == (2, 5)


def test_only_some_go_uncounted(store: Store) -> None:
    """A message that is given back again and again becomes a dead letter: only ten deliveries go uncounted."""
    scene = Scene(store, "a")
    attempts = []
    while claimed := scene.claim():
        [scene.last] = claimed
        attempts.append(scene.last.deliveries)
        scene.release(begun=False)
    assert attempts == [1] * (MAX_UNCOUNTED + 1) + [2, 3]
    assert wait_for_dead_letter(store, scene.queue, scene.places[0]).cause.attempts == MOST


def test_claims_that_never_left_the_service_do_not_count(store: Store) -> None:
    """However often an answer comes too late and its claim is released, the message is not used up."""
    scene = Scene(store, "a")
    with replace(ClaimUseCases._is_late, lambda *_: True):
        for _ in range(MAX_UNCOUNTED + MOST):
            with pytest.raises(StoreUnavailable, match="before this answer"):
                scene.claim()
    assert scene.claim_counts()[0] == 1


def test_backoff_goes_by_attempts(store: Store, clock: Clock) -> None:
    """A failure after deliveries that do not count is delayed as the first one; the last attempt keeps its delay."""
    scene = Scene(store, "a")
    for begun, delay in [(False, 10), (True, 10), (False, 10), (True, 20), (False, 20), (True, 0)]:
        scene.claim_counts()
        assert scene.release(begun=begun, reason="E") == delay
        clock.advance(delay + 2)
    assert scene.claim() == []


def test_what_people_see(store: Store) -> None:
    """Lists, the status and the explanation of a job show its attempts, and beside them how often it was handed out."""
    scene = Scene(store, "a")
    place = 1, scene.places[0]
    for begun in (False, False, True, False):
        scene.claim_counts()
        scene.release(begun=begun)
    [job] = scene.service.core.run(scene.service.claims.overview.list_jobs(scene.access, 10))
    assert (job.deliveries, job.handed_out) == (1, 4)
    info = scene.claims.job(scene.access, place)
    assert (info.deliveries, info.handed_out, info.status) == (1, 4, "waiting")
    reasons = scene.service.core.run(scene.service.explaining.explain(scene.access, place[1], 1)).reasons
    [text] = [reason.text for reason in reasons if reason.code == "waiting"]
    assert "delivered 4 times (1 attempt; " in text
    assert scene.service.core.run(scene.service.claims.overview.backlog(scene.access, 10)).failed == 1


def test_a_result_of_an_uncounted_delivery_is_void(store: Store) -> None:
    """The row of a delivery that was given back is not shown for the next one, which is the same attempt."""
    scene = ResultScene(store)
    first = scene.claim()
    scene.write(first)
    scene.claims.release(scene.access, [first], begun=False)
    assert scene.acknowledge(scene.claim()) is ReceiptStatus.ACCEPTED
    assert scene.end() == ("done", None)


def bodies_of(claimed: Sequence[ClaimDelivery]) -> list[str | bytes]:
    return [delivery.message.body for delivery in claimed]


@pytest.mark.parametrize("options", [{}, {"kind": "dedup"}, {"max_claimed": 50}], ids=["plain", "dedup", "limited"])
def test_what_expired_is_delivered_alone(store: Store, other: Store, clock: Clock, options: dict[str, Any]) -> None:
    """After their claim has expired, messages come one by one, to every process; others come together."""
    scene = Scene(store, "a", "b", "c", "d", **options)
    first = scene.claim(3)
    scene.claims.release(scene.access, [first[2].receipt])
    append_bodies(store, scene.queue, "e")
    clock.advance(70)
    scene.use(other)
    seen = [scene.claim(10) for _ in range(4)]
    assert sorted(map(bodies_of, seen)) == [["a"], ["b"], ["c"], ["d", "e"]]
    assert {one.message.body: one.suspected for batch in seen for one in batch} == {
        body: body in "ab" for body in "abcde"
    }
    scene.claims.release(scene.access, [delivery.receipt for batch in seen for delivery in batch], begun=False)
    again = [scene.claim(10) for _ in range(5)]
    assert [len(batch) for batch in again if any(delivery.suspected for delivery in batch)] == [1, 1]
    assert sum(map(len, again)) == 5


def test_a_claim_of_several_partitions_is_alone_too(store: Store, clock: Clock) -> None:
    """A claim that gathers messages of partitions gets a suspected message alone, or none."""
    scene = Scene(store, partitions=3)
    for number in (1, 2, 3):
        append_bodies(store, scene.queue, f"{number}a", f"{number}b", partition=number)
    expired = {delivery.message.body for delivery in scene.claim(1, partitions=[2])}
    clock.advance(70)
    claimed: list[list[ClaimDelivery]] = []
    while found := scene.claim(10, gather=True):
        claimed.append(found)
        assert len(found) == 1 or not any(delivery.suspected for delivery in found)
    delivered = Counter(body for one in claimed for body in bodies_of(one))
    assert delivered == {f"{number}{each}": 1 for number in (1, 2, 3) for each in "ab"}
    assert [bodies_of(one) for one in claimed if one[0].suspected] == [[*expired]]


def test_what_says_nothing_about_an_expired_claim(store: Store, clock: Clock) -> None:
    """Neither an operator's acts nor a look at a message take the suspicion away; a late word of its worker does."""
    scene = Scene(store, "a", "b", "c", "d", "e")
    held = scene.claim(5)
    clock.advance(70)
    assert len(scene.claim(10, ttl=0)) == 5
    scene.claims.make_available_now(scene.access, scene.places[0])
    scene.claims.release(scene.access, [ClaimReceipt(1, *scene.places[1])])
    scene.claims.release(scene.access, [held[2].receipt, held[3].receipt])
    scene.claims.release_all(scene.access)
    assert sorted(map(len, (scene.claim(10) for _ in range(5)))) == [0, 1, 1, 1, 2]


@pytest.mark.parametrize(("bad", "together"), [(0, 100), (50, 1), (99, 10)])
@pytest.mark.slow_on("cassandra")
def test_a_message_that_ends_its_worker_spends_only_its_own_attempts(
    store: Store, clock: Clock, bad: int, together: int
) -> None:
    """If one of 100 messages in a claim ends its worker, only that message becomes a dead letter.

    All others are handled, with at most two attempts.
    """
    scene = Scene(store, *map(str, range(100)))
    handled: list[str | bytes] = []
    attempts: dict[str | bytes, int] = {}
    while claimed := scene.claim(100):
        finished: list[ClaimReceipt] = []
        for delivery in claimed:
            body = delivery.message.body
            attempts[body] = delivery.deliveries
            if body == str(bad):
                clock.advance(70)  # The worker has ended, and says nothing.
                break
            handled.append(body)
            finished.append(delivery.receipt)
            if len(finished) >= together or delivery is claimed[-1]:
                scene.claims.acknowledge(scene.access, finished)
                finished = []
    assert set(handled) == {str(number) for number in range(100) if number != bad}
    acknowledged = bad // together * together
    expected = {str(number): 1 if number < acknowledged else 2 for number in range(100)}
    assert attempts == expected | {str(bad): MOST}
    assert wait_for_dead_letter(store, scene.queue, scene.places[bad]).cause.attempts == MOST
    assert scene.service.core.run(scene.service.claims.overview.size(scene.access, 1000)).size == 0

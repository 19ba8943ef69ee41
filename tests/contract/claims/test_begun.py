"""Attempts: a delivery that was given back before work on its message began does not count as one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuey.claims.receipts import MAX_UNCOUNTED, ClaimReceipt, ReceiptStatus
from queuey.errors import StoreUnavailable
from queuey.messages import Backoff, Queue, QueueSpec
from queuey.service import ClaimDelivery, ClaimUseCases
from queuey.service.claims import ReleaseReason
from queuey.storage import Store, bridge
from tests.backends import APP, Clock
from tests.blocking import blocking
from tests.contract.claims.test_attempts import wait_for_dead_letter
from tests.contract.claims.test_claims import enter
from tests.contract.results.test_results import Scene as ResultScene
from tests.contract.samples import append_bodies, fresh_name
from tests.replacing import replace

MOST = 3


class Scene:
    """A queue whose messages become dead letters after ``MOST`` attempts, and a process."""

    def __init__(self, store: Store, *bodies: str) -> None:
        backoff = Backoff(first=10, factor=2, most=100, jitter=0)
        spec = QueueSpec(read_delay=0.0, max_deliveries=MOST, backoff=backoff)
        self.queue: Queue
        self.queue, _ = bridge.run(store.catalogue.create_queue(APP, fresh_name(), spec))
        self.places = append_bodies(store, self.queue, *bodies)
        self.store = store
        self.use(store)

    def use(self, store: Store) -> None:
        self.service, self.access = enter(store, self.queue)
        self.claims = blocking(self.service.claims)

    def claim(self, limit: int = 1) -> list[ClaimDelivery]:
        return self.claims.claim(self.access, limit=limit, ttl=60)

    def claim_counts(self) -> tuple[int, int]:
        """Claims the message; returns the number of the attempt and that of all deliveries."""
        [self.last] = self.claim()
        return self.last.deliveries, self.last.handed_out

    def release(self, *, begun: bool, delay: float | None = None, reason: str = "") -> float:
        """Releases the last claim; returns the seconds until its message is delivered again."""
        why = ReleaseReason(reason) if reason else None
        receipts: list[ClaimReceipt] = [self.last.receipt]
        [settled] = self.claims.release(self.access, receipts, delay, why, begun=begun)
        assert settled.status is ReceiptStatus.DONE
        return round(settled.expires - self.store.claim_logs.claim_now() / 1000, 1) if settled.expires else 0.0


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


def test_an_attempt_that_counts_stays_counted(store: Store, clock: Clock) -> None:
    """Neither a later word nor a release of all claims takes back an attempt that was released as begun."""
    scene = Scene(store, "a", "b")
    for number in range(1, MOST + 1):
        assert scene.claim_counts() == (number, number)
        scene.release(begun=True, delay=None if number == 1 else 20)
        scene.release(begun=False, delay=20)
        scene.claims.release_all(scene.access)
    [other] = scene.claim(10)
    assert other.message.position == scene.places[1]
    assert wait_for_dead_letter(store, scene.queue, scene.places[0]).cause.attempts == MOST


def test_a_renewed_claim_counts_again(store: Store, clock: Clock) -> None:
    """If a renewal comes after a release, the claim lives on, so its attempt counts if it ends in silence."""
    scene = Scene(store, "a")
    assert scene.claim_counts() == (1, 1)
    scene.release(begun=False)
    [renewed] = scene.claims.renew(scene.access, [scene.last.receipt], 60)
    assert renewed.status is ReceiptStatus.DONE
    clock.advance(70)
    assert scene.claim_counts() == (2, 2)


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
    [job] = scene.service.claims.list_jobs(scene.access, 10)
    assert (job.deliveries, job.handed_out) == (1, 4)
    info = scene.claims.job(scene.access, place)
    assert (info.deliveries, info.handed_out, info.status) == (1, 4, "waiting")
    reasons = scene.service.explaining.explain(scene.access, place[1], 1).reasons
    [text] = [reason.text for reason in reasons if reason.code == "waiting"]
    assert "delivered 4 times (1 attempt; " in text
    assert scene.service.claims.backlog(scene.access, 10).failed == 1


def test_a_result_of_an_uncounted_delivery_is_void(store: Store) -> None:
    """The row of a delivery that was given back is not shown for the next one, which is the same attempt."""
    scene = ResultScene(store)
    first = scene.claim()
    scene.write(first)
    scene.claims.release(scene.access, [first], begun=False)
    assert scene.acknowledge(scene.claim()) is ReceiptStatus.DONE
    assert scene.end() == ("done", None)

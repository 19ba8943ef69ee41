"""Queues with ``on_expiry = dead-letter``: a message not done by the end of its TTL becomes a dead letter, once."""

from __future__ import annotations

from typing import Any

from queuey.access.queue_access import QueueAccess
from queuey.claims.claims import HandlerFailure
from queuey.claims.expiry_records import KIND
from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.log.move_turns import MoveOrder
from queuey.claims.rules.receipts import ReceiptStatus
from queuey.messages.posts import Draft
from queuey.model.deadletters import HEADER_PREFIX
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Queue, QueueSpec, Record
from queuey.runtime.event_loop import Core
from queuey.storage import Store, bridge
from tests.backends import APP, Clock
from tests.blocking import blocking, post
from tests.contract.samples import dead_letters, eventually, idle_service, make_queue, messages_in_partition
from tests.replacing import replace_in

TTL = 100
DAY = 86_400


class Process:
    """A process of the service whose steps the test takes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.service = idle_service(store)
        self.claims = blocking(self.service.claims)
        assert self.service.claims.expiry is not None
        self.records = self.service.claims.expiry

    def enter(self, queue: Queue) -> QueueAccess:
        return self.service.queues.access_unchecked(queue)

    def post(self, queue: Queue, *bodies: str, **named: Any) -> None:  # noqa: ANN401 - as a draft has it
        post(self.service, self.enter(queue), [Draft(body, partition=1, **named) for body in bodies])

    def claim(self, queue: Queue, ttl: float = 10, limit: int = 100) -> list[ClaimDelivery]:
        return self.claims.claim(self.enter(queue), limit=limit, ttl=ttl)

    def record(self, queue: Queue) -> Record | None:
        return bridge.run(self.store.records.record(KIND, APP, f"{queue.qid:x}"))

    def step(self, queue: Queue) -> None:
        record = self.record(queue)
        assert record is not None
        self.service.core.run(self.records.step(record))


def make_expiring_queue(store: Store, **options: Any) -> Queue:  # noqa: ANN401 - as a spec has them
    """Makes a queue whose expired messages become dead letters, without a read delay."""
    return make_queue(store, on_expiry="dead-letter", on_ack="delete", **{"ttl": TTL} | options)


def letters(store: Store, queue: Queue) -> dict[str | bytes, dict[str, str]]:
    messages = dead_letters(store, queue)
    assert len({message.body for message in messages}) == len(messages)
    said = {message.body: dict(message.meta.headers) for message in messages if message.meta}
    return {body: {key.removeprefix(HEADER_PREFIX): text for key, text in told.items()} for body, told in said.items()}


def wait_for_letters(store: Store, queue: Queue, *bodies: str) -> bool:
    return eventually(lambda: set(letters(store, queue)) == set(bodies))


def test_a_message_nobody_claims_becomes_a_dead_letter(store: Store, clock: Clock) -> None:
    """The record's step makes an expired message a dead letter without a claim; the record is removed in the end."""
    process, queue = Process(store), make_expiring_queue(store)
    process.post(queue, "one", "two")
    clock.advance(TTL - 1)
    process.step(queue)
    assert letters(store, queue) == {}
    clock.advance(20)
    assert messages_in_partition(store, queue) == []
    process.step(queue)
    assert wait_for_letters(store, queue, "one", "two")
    assert letters(store, queue)["one"]["error"] == "Expired"
    process.step(queue)
    assert process.record(queue) is not None
    clock.advance(DAY)
    process.step(queue)
    assert process.record(queue) is None


def test_claims_give_up_what_has_expired(store: Store, clock: Clock) -> None:
    """A claim gets no expired message, and makes dead letters of expired ones, delivered or not."""
    process, queue = Process(store), make_expiring_queue(store)
    process.post(queue, "failed", "new")
    [failed] = process.claim(queue, limit=1)
    process.claims.release(process.enter(queue), [failed.receipt], 5.0, HandlerFailure("ValueError", "no wages"))
    clock.advance(TTL + 5)
    process.post(queue, "later")
    assert [delivery.message.body for delivery in process.claim(queue)] == ["later"]
    assert letters(store, queue) == {}
    clock.advance(10)
    assert process.claim(queue) == []
    assert eventually(lambda: "failed" in letters(store, queue))
    process.step(queue)  # If ids become certain late, the claim has not gone back to the other one.
    assert wait_for_letters(store, queue, "failed", "new")
    told = letters(store, queue)
    assert (told["failed"]["error"], told["failed"]["attempts"]) == ("Expired", "1")
    assert "ValueError" in told["failed"]["text"]


def test_a_live_claim_is_left_to_its_worker(store: Store, clock: Clock) -> None:
    """An acknowledgement after the TTL counts; a claim that is renewed for half a day after the TTL is taken away."""
    process, queue = Process(store), make_expiring_queue(store)
    process.post(queue, "done", "lost", "kept")
    claims = {delivery.message.body: delivery.receipt for delivery in process.claim(queue, ttl=200)}
    clock.advance(TTL + 20)
    process.step(queue)
    assert letters(store, queue) == {}
    process.claims.acknowledge(process.enter(queue), [claims["done"]])
    process.claims.renew(process.enter(queue), [claims["kept"]], 43_200)
    clock.advance(200)
    process.step(queue)
    assert wait_for_letters(store, queue, "lost")
    clock.advance(42_000)
    process.claims.renew(process.enter(queue), [claims["kept"]], 43_200)
    process.step(queue)
    assert set(letters(store, queue)) == {"lost"}
    clock.advance(1_000)
    process.step(queue)
    assert wait_for_letters(store, queue, "lost", "kept")
    [settled] = process.claims.acknowledge(process.enter(queue), [claims["kept"]])
    assert settled.status is ReceiptStatus.SUPERSEDED


def test_only_kept_messages_become_dead_letters(store: Store, clock: Clock) -> None:
    """A message with its own TTL is dropped. Delayed ones end after their delay; copies outlive the delivered one."""
    process, queue = Process(store), make_expiring_queue(store, kind="dedup")
    if store.messages.exact_horizon:  # Other stores expire rows by a clock that no test moves.
        post(process.service, process.enter(queue), [Draft("dropped", ttl=TTL)])
    post(process.service, process.enter(queue), [Draft("delayed", delay=50.0)])
    post(process.service, process.enter(queue), [Draft("twice")])
    assert [one.message.body for one in process.claim(queue, ttl=5) if one.message.body == "twice"] == ["twice"]
    clock.advance(60)
    post(process.service, process.enter(queue), [Draft("twice")])
    clock.advance(55)
    process.step(queue)
    assert wait_for_letters(store, queue, "twice")
    assert {delivery.message.body for delivery in process.claim(queue, ttl=5)} == {"twice", "delayed"}
    clock.advance(50)
    process.step(queue)
    assert wait_for_letters(store, queue, "twice", "delayed")


def test_ordered_queues_go_on_behind_a_dead_letter(store: Store, clock: Clock) -> None:
    """While a message may have expired by some clock, later ones of its key wait; then they are delivered."""
    process, queue = Process(store), make_expiring_queue(store, kind="ordered")
    post(process.service, process.enter(queue), [Draft("first", key="k")])
    clock.advance(60)
    post(process.service, process.enter(queue), [Draft("second", key="k")])
    clock.advance(45)
    assert process.claim(queue) == []
    clock.advance(10)
    process.step(queue)
    assert wait_for_letters(store, queue, "first")
    if store.messages.exact_horizon:  # Elsewhere nothing is below the horizon while a test moves the clock.
        assert [delivery.message.body for delivery in process.claim(queue)] == ["second"]


def test_a_move_takes_the_rest(store: Store, clock: Clock) -> None:
    """A move leaves expired messages, which become dead letters of the source, and takes the others."""
    process, queue = Process(store), make_expiring_queue(store)
    process.post(queue, "expired")
    clock.advance(60)
    process.post(queue, "moved")
    clock.advance(55)
    order = MoveOrder(move=1, below=(clock.ticks, 0), exact=store.messages.exact_horizon)
    turn = process.service.core.run(process.service.claims.take_move_turn(queue, 1, order))
    if store.messages.exact_horizon:  # Other stores are not certain of anything yet, by this clock.
        assert [message.body for message in turn.messages or ()] == ["moved"]
        assert wait_for_letters(store, queue, "expired")
    assert not turn.ended


def test_upgrades_from_a_queue_without_the_option(store: Store, clock: Clock) -> None:
    """A message that was posted with the option becomes a dead letter also after the option was removed."""
    process = Process(store)
    queue = make_queue(store, ttl=TTL, on_ack="delete")
    assert process.record(queue) is None
    queue = bridge.run(store.catalogue.update_queue(queue, QueueSpec(on_expiry="dead-letter")))
    process.post(queue, "kept")
    queue = bridge.run(store.catalogue.update_queue(queue, QueueSpec(on_expiry="drop")))
    clock.advance(TTL + 20)
    assert process.claim(queue) == []
    process.step(queue)
    assert wait_for_letters(store, queue, "kept")


def test_a_purge_ends_the_record(store: Store, clock: Clock) -> None:
    """Purged messages become no dead letters; the next message gets a new record and a marked log."""
    process, queue = Process(store), make_expiring_queue(store)
    process.post(queue, "purged")
    purged = bridge.run(store.catalogue.purge_queue(queue))
    process.step(queue)
    assert process.record(queue) is None
    process.post(purged, "next")
    clock.advance(TTL + 20)
    process.step(purged)
    assert wait_for_letters(store, purged, "next")


def finish_all(process: Process, queue: Queue) -> None:
    receipts = [delivery.receipt for delivery in process.claim(queue)]
    process.claims.acknowledge(process.enter(queue), receipts)


def seconds_until_search(process: Process, queue: Queue, clock: Clock) -> float:
    record = process.record(queue)
    assert record is not None
    return (record.due - clock.ticks) / TICKS_PER_SECOND


def test_a_clock_that_was_ahead_hides_no_message(store: Store, clock: Clock) -> None:
    """A record from a clock that was ahead is not relied on: later messages are searched in time, and it is removed."""
    process, queue = Process(store), make_expiring_queue(store)
    clock.advance(3 * DAY)
    process.post(queue, "one")
    finish_all(process, queue)
    clock.advance(-3 * DAY)
    process.post(queue, "two")
    assert seconds_until_search(process, queue, clock) < 2 * TTL
    queue = make_expiring_queue(store)
    clock.advance(3 * DAY)
    process.post(queue, "one")
    finish_all(process, queue)
    clock.advance(-3 * DAY)
    process.step(queue)
    assert process.record(queue) is None


def test_a_clock_that_is_set_back_hides_no_message(store: Store, clock: Clock) -> None:
    """Posts, also of another process, do not rely on a record that was removed before the clock was set back."""
    boottime = clock.ticks / TICKS_PER_SECOND
    with replace_in(Core, Core.boottime, lambda: boottime):
        process, queue = Process(store), make_expiring_queue(store)
        process.post(queue, "one")
        finish_all(process, queue)
        clock.advance(DAY)
        boottime += DAY
        Process(store).step(queue)
        assert process.record(queue) is None
        clock.advance(100 - DAY)
        process.post(queue, "two")
        assert process.record(queue) is not None


def test_a_shorter_ttl_is_searched_in_time(store: Store, clock: Clock) -> None:
    """Messages with a shorter TTL are searched in time, also while posts rely on the record of a longer one."""
    process, queue = Process(store), make_expiring_queue(store, ttl=DAY)
    process.post(queue, "long")
    queue = bridge.run(store.catalogue.update_queue(queue, QueueSpec(ttl=TTL)))
    process.post(queue, "short")
    finish_all(process, queue)
    clock.advance(TTL + 20)
    process.step(queue)
    clock.advance(5)
    process.post(queue, "late")
    assert seconds_until_search(process, queue, clock) < 2 * TTL


def test_a_store_without_posts_is_searched_no_more_often(store: Store, clock: Clock) -> None:
    """A long-lived message does not make the store search every second."""
    process, queue = Process(store), make_expiring_queue(store)
    process.post(queue, "delayed", delay=10.0 * DAY)
    clock.advance(DAY)
    process.step(queue)
    if store.messages.exact_horizon:  # The horizon of other stores follows a clock that no test moves.
        assert seconds_until_search(process, queue, clock) >= TTL

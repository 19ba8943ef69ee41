"""Dead letters go back exactly once, wherever an attempt ends; without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queuey import ids
from queuey.deadletters import Cause, DeadLetterFilter, Redriven
from queuey.messages import Message, NewMessage, QueueSpec
from queuey.pipeline.deadletter.redrive import Redrive, RedriveOrder
from queuey.pipeline.deadletter.selection import DeadLetterUnit
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import StoreOptions
from queuey.storage import Bulk, Ledger, Messages, Store, bridge
from tests.backends import APP, Clock, SqliteLocation
from tests.spark.attempts import Killed, Mortal
from tests.spark.pipeline.deadletter.stored_dead_letters import TTL, Grave, bury, grave, read_all

CAUSE = Cause(attempts=3, error="acme.Late", text="late", at=1_795_145_194.0)
ALL = DeadLetterFilter(queues=("orders",))
CHANGES = (Ledger.enter, Bulk.load_unread, Messages.delete)
"""The calls of an attempt that change anything."""


def mortal(store: Store, calls: int, *, after: bool) -> Store:
    return Mortal(store, calls - 1, "after" if after else "before", steps=CHANGES).store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    opened = SqliteLocation(tmp_path / "data").open(clock)
    bridge.run(opened.applications.create_application(APP))
    yield opened
    opened.close()


@pytest.fixture
def orders(store: Store) -> Grave:
    return grave(store, "orders")


def run_redrive(
    store: Store,
    at: Grave,
    *,
    run: str = "r1",
    wanted: DeadLetterFilter = ALL,
    **options: Any,  # noqa: ANN401 - those of the redrive
) -> Redriven:
    """Runs a redrive on all partitions, in chunks of three; a dry run only counts. Returns the sums."""
    order = RedriveOrder(run=run, wanted=wanted, **options)
    queue = partial(open_stores.find_existing_queue, store, StoreOptions(application=APP))
    work = Redrive(store, queue, order, TTL, chunk=3, page=2)
    numbers = range(1, at.dead.partitions + 1)
    units = [tuple(numbers)] if wanted.limit is not None else [(number,) for number in numbers]
    outcome = Redriven()
    for partitions in units:
        unit = DeadLetterUnit(at.dead.name, at.dead.qid, partitions)
        outcome += work.count_unit(at.dead, unit) if options.get("dry_run") else work.send_unit(at.dead, unit)
    return outcome


def compared_fields(messages: list[Message]) -> list[tuple[int, str | bytes]]:
    return sorted((message.partition, message.body) for message in messages)


def test_letters_become_what_they_were(store: Store, orders: Grave, clock: Clock) -> None:
    """A letter goes to the end of its partition with its original body, type and headers, and the queue's TTL."""
    dead_letters = bury(store, orders.dead, "orders", [CAUSE] * 9, json=True)
    assert run_redrive(store, orders) == Redriven(sent={"orders": 9})
    assert read_all(store, orders.dead) == []
    assert read_all(store, orders.queue) == []
    clock.advance(60)
    back = read_all(store, orders.queue)
    assert compared_fields(back) == compared_fields(dead_letters)
    assert all(message.meta is not None and message.meta.json for message in back)
    assert {message.meta.headers for message in back if message.meta} == {
        (("trace", f"t{number}"),) for number in range(9)
    }
    assert {message.expires - message.ticks for message in back} == {TTL * ids.TICKS_PER_SECOND}
    for number in (1, 2):
        order = [message.body for message in dead_letters if message.partition == number]
        assert [message.body for message in back if message.partition == number] == order


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_attempt_may_end_anywhere(store: Store, orders: Grave, clock: Clock, after: bool) -> None:  # noqa: FBT001 - a parameter
    """Killed before or after each change, a repeated run sends each letter exactly once."""
    for calls in range(1, 40):
        dead_letters = bury(store, orders.dead, "orders", [CAUSE] * 5)
        lived = False
        with suppress(Killed):
            run_redrive(mortal(store, calls, after=after), orders, run=f"run {calls}")
            lived = True
        outcome = run_redrive(store, orders, run=f"run {calls}")
        assert (outcome.sent, outcome.left) == ({"orders": 5}, {})
        assert read_all(store, orders.dead) == []
        clock.advance(60)
        back = read_all(store, orders.queue)
        assert compared_fields(back) == compared_fields(dead_letters)
        bridge.run(store.messages.delete(orders.queue, [(one.partition, one.position) for one in back]))
        if lived:
            assert calls > 10
            return
    pytest.fail("no attempt lived")


@pytest.mark.parametrize("calls", range(1, 9))
def test_late_retries_lose_nothing(store: Store, orders: Grave, clock: Clock, calls: int) -> None:
    """A retry after readers may have passed the reserved ids sends the missing letters at other ids."""
    dead_letters = bury(store, orders.dead, "orders", [CAUSE] * 5)
    with pytest.raises(Killed):
        run_redrive(mortal(store, calls, after=True), orders)
    clock.advance(100)
    bridge.run(store.messages.append(orders.queue, [NewMessage("x", 1, TTL), NewMessage("x", 2, TTL)]))
    run_redrive(store, orders)
    clock.advance(100)
    assert compared_fields([one for one in read_all(store, orders.queue) if one.body != "x"]) == compared_fields(
        dead_letters
    )
    assert read_all(store, orders.dead) == []


def test_a_finished_run_does_nothing_more(store: Store, orders: Grave) -> None:
    """Later letters need another run, and the report stays as it was."""
    bury(store, orders.dead, "orders", [CAUSE] * 4)
    first = run_redrive(store, orders)
    later = bury(store, orders.dead, "orders", [CAUSE] * 2)
    assert run_redrive(store, orders) == first
    assert compared_fields(read_all(store, orders.dead)) == compared_fields(later)
    assert run_redrive(store, orders, run="r2").sent == {"orders": 2}


def test_a_letter_that_died_again_stays(store: Store, orders: Grave) -> None:
    """A letter stored anew under its id, between sending and removing, is not removed."""
    [dead_letter] = bury(store, orders.dead, "orders", [CAUSE])
    with pytest.raises(Killed):
        run_redrive(mortal(store, 4, after=False), orders)
    bridge.run(
        store.messages.put(
            orders.dead, [(1, dead_letter.position)], NewMessage(dead_letter.body, 1, TTL * 2, dead_letter.meta)
        )
    )
    run_redrive(store, orders)
    assert [one.position for one in read_all(store, orders.dead)] == [dead_letter.position]


def test_only_what_is_meant(store: Store, orders: Grave) -> None:
    """Filters and the limit select as for workers; messages that are not letters stay."""
    other = Cause(attempts=1, error="acme.Broken", text="", at=CAUSE.at + 10)
    bury(store, orders.dead, "orders", [CAUSE, other, CAUSE, other, CAUSE])
    bridge.run(store.messages.append(orders.dead, [NewMessage("no letter", 1, TTL)]))
    assert run_redrive(store, orders, run="a", wanted=DeadLetterFilter(queues=("other",))).sent == {}
    few = DeadLetterFilter(patterns=("ord*",), error="Late", limit=2)
    assert run_redrive(store, orders, run="b", wanted=few).sent == {"orders": 2}
    late = DeadLetterFilter(queues=("orders",), since=CAUSE.at + 5)
    assert run_redrive(store, orders, run="c", wanted=late).sent == {"orders": 2}
    assert run_redrive(store, orders, run="d").sent == {"orders": 1}
    assert [one.body for one in read_all(store, orders.dead)] == ["no letter"]


def test_what_cannot_go_back_stays(store: Store, orders: Grave) -> None:
    """Letters whose queue is gone, or has fewer partitions now, stay and are reported with the reason."""
    bury(store, orders.dead, "orders", [CAUSE] * 2)
    bury(store, orders.dead, "gone", [CAUSE])
    bridge.run(store.catalogue.delete_queue(orders.queue))
    bridge.run(store.catalogue.create_queue(APP, "orders", QueueSpec(partitions=1)))
    both = DeadLetterFilter(queues=("orders", "gone"))
    planned = run_redrive(store, orders, wanted=both, dry_run=True)
    done = run_redrive(store, orders, wanted=both)
    assert planned == done
    assert done.sent == {"orders": 1}
    assert done.left == {"queue gone is gone": 1, "queue orders has only 1 partitions": 1}
    assert [one.reason for one in done.samples] == ["queue gone is gone", "queue orders has only 1 partitions"]
    assert len(read_all(store, orders.dead)) == 2


def test_a_name_stands_for_one_order(store: Store, orders: Grave) -> None:
    """A run cannot be continued with other filters."""
    bury(store, orders.dead, "orders", [CAUSE] * 2)
    run_redrive(store, orders)
    with pytest.raises(OptionError, match="began with other"):
        run_redrive(store, orders, wanted=DeadLetterFilter(queues=("orders",), error="Late"))


def test_a_letter_is_believed_only_where_those_of_its_queue_lie(store: Store, orders: Grave, clock: Clock) -> None:
    """A sender to a queue of dead letters cannot redirect messages to another queue, unless the operator names it."""
    payroll = grave(store, "payroll")
    bury(store, orders.dead, "payroll", [CAUSE])
    selection = DeadLetterFilter(patterns=("*",))
    reason = "dead letters of payroll do not go to orders.dead: check them, then name --dead-queue"
    for dry_run in (True, False):
        done = run_redrive(store, orders, run="all", wanted=selection, dry_run=dry_run)
        assert (done.sent, done.left) == ({}, {reason: 1})
    assert len(read_all(store, orders.dead)) == 1
    bridge.run(store.catalogue.update_queue(payroll.queue, QueueSpec(dead_letter="orders.dead")))
    assert run_redrive(store, orders, run="again", wanted=selection).sent == {"payroll": 1}
    bridge.run(
        store.catalogue.update_queue(
            bridge.run(store.catalogue.queue(APP, "payroll", fresh=True)), QueueSpec(), clear=["dead_letter"]
        )
    )
    bury(store, orders.dead, "payroll", [CAUSE])
    named = DeadLetterFilter(queues=("payroll",), dead_queue="orders.dead")
    assert run_redrive(store, orders, run="named", wanted=named).sent == {"payroll": 1}

"""Moves of offsets: changes, messages to be handled again, and the original Qdo's status messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdo.coordination import CommittedOffset
from qdo.moves import Move, WorkerStatus, newest_statuses, plan_migration, read_status
from qdo.partitions import Partition, Queue
from queuey.client import Message, id_before, order_of

QUEUE = Queue("host", "app", "orders")
PLACE = Partition(QUEUE, 1)
EARLY, LATE = id_before(1_000_000_000), id_before(1_000_000_001)


@pytest.mark.parametrize(
    ("before", "after", "changes", "back"),
    [
        (None, None, False, False),
        (None, EARLY, True, False),
        (EARLY, None, True, True),
        (EARLY, LATE, True, False),
        (LATE, EARLY, True, True),
        (EARLY, EARLY.upper(), False, False),
    ],
)
def test_moves_know_their_direction(before: str | None, after: str | None, changes: bool, back: bool) -> None:  # noqa: FBT001
    """A move goes back if a message that counted as processed no longer would."""
    move = Move(PLACE, before, after)
    assert (move.is_change, move.goes_back) == (changes, back)


@given(st.floats(1e9, 2e9), st.floats(1e9, 2e9))
def test_direction_is_that_of_time(one: float, other: float) -> None:
    """Of two ids the one of the later instant is ahead."""
    before, after = id_before(one), id_before(other)
    assert Move(PLACE, before, after).goes_back == (order_of(after) < order_of(before))


ORDERS = Queue("host", "app", "or-ders")
FIRST, SECOND, THIRD = (id_before(1_000_000_000 + second) for second in range(3))


def message(body: object, identifier: str = FIRST, partition: int = 1) -> Message:
    return Message(identifier, "0", partition, body)


def body(place: str, processed: str = "") -> str:
    return json.dumps({"partition": place, "processed": processed, "last_worker": "host-1"})


@given(st.text(min_size=1), st.integers(1, 200))
def test_names_are_split_at_the_last_dash(name: str, number: int) -> None:
    """The partition number is behind the last dash, whatever the queue's name."""
    status = read_status(message(body(f"{name}-{number}", SECOND)))
    assert (status.queue, status.number, status.processed) == (name, number, SECOND)


@pytest.mark.parametrize("form", [str, str.encode, json.loads], ids=["text", "bytes", "JSON"])
def test_any_form_of_the_body_is_read(form: Any) -> None:  # noqa: ANN401 - makes a body of text
    """A status is read from any JSON form that the service keeps; an empty ``processed`` means that nothing was."""
    assert read_status(message(form(body("a-2")))) == WorkerStatus("a", 2, None, FIRST)


@pytest.mark.parametrize(
    "wrong",
    ["", "[]", "{}", body("orders"), body("orders-x"), body("orders-0"), body("-1"), body("a-1", "what"), b"\xff", 5],
)
def test_what_is_no_status_is_named(wrong: object) -> None:
    """An invalid status message is skipped, and reported with its place and the reason."""
    statuses, unreadable = newest_statuses([message(wrong, THIRD, 4), message(body("a-1"))])
    assert [status.queue for status in statuses] == ["a"]
    assert len(unreadable) == 1
    assert unreadable[0].startswith(f"4:{THIRD}: ")


@given(st.permutations([(FIRST, 1, FIRST), (SECOND, 5, THIRD), (THIRD, 7, SECOND)]))
def test_newest_status_counts(entries: list[tuple[str, int, str]]) -> None:
    """Of several statuses of a partition the newest counts, wherever it is stored, even if it is behind."""
    last, _ = newest_statuses(message(body("or-ders-3", processed), name, place) for name, place, processed in entries)
    assert [(status.message, status.processed) for status in last] == [(THIRD, SECOND)]


def status(number: int, processed: str | None, queue: Queue = ORDERS) -> dict[Partition, str | None]:
    return {Partition(queue, number): processed}


@given(
    st.dictionaries(st.integers(1, 6), st.sampled_from([None, FIRST, SECOND, THIRD])),
    st.dictionaries(st.integers(1, 6), st.sampled_from([FIRST, SECOND, THIRD])),
)
def test_a_second_run_changes_nothing(said: dict[int, str | None], known: dict[int, str]) -> None:
    """After a plan was carried out the next one is empty, and nothing moves back."""
    statuses = {place: one for number, name in said.items() for place, one in status(number, name).items()}
    recorded = {Partition(ORDERS, number): CommittedOffset(name) for number, name in known.items()}
    moves, _ = plan_migration(statuses, {ORDERS: 5}, recorded)
    assert not any(move.goes_back for move in moves)
    after = recorded | {move.partition: CommittedOffset(move.after) for move in moves}
    assert not any(move.is_change for move in plan_migration(statuses, {ORDERS: 5}, after)[0])

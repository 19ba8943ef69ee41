"""Tests of the ledger, whose entries about pieces of work are changed by compare-and-set."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from queuey.model import ids
from queuey.model.errors import Conflict
from queuey.storage import Entry, Store, bridge
from tests.backends import Clock
from tests.contract.samples import append_bodies, call_concurrently, fresh_name, make_queue


def test_compared_and_set(store: Store, other: Store) -> None:
    """An entry changes only if it has the expected value."""
    work = fresh_name()
    bridge.run(store.ledger.enter(work, 0, b"a", expected=None))
    assert bridge.run(other.ledger.enter(work, 0, b"b", expected=b"a")) == b"b"
    assert bridge.run(store.ledger.enter(work, 0, b"c", expected=b"a")) == b"b"
    assert bridge.run(store.ledger.entry(work, 0)) == b"b"
    assert bridge.run(store.ledger.enter(work, 0, b"a", expected=b"b")) == b"a"
    assert bridge.run(other.ledger.entry(work, 0)) == b"a"


@pytest.mark.parametrize("expected", [None, b"a"])
def test_entering_again(store: Store, other: Store, expected: bytes | None) -> None:
    """A caller that repeats a call gets the same answer."""
    work = fresh_name()
    if expected is not None:
        bridge.run(store.ledger.enter(work, 0, expected, expected=None))
    for handle in (store, other, store):
        assert bridge.run(handle.ledger.enter(work, 0, b"b", expected=expected)) == b"b"
    assert bridge.run(store.ledger.entry(work, 0)) == b"b"


def test_expecting_what_is_not_there(store: Store) -> None:
    """A comparison with an entry that has expired enters nothing, and the caller is told."""
    work = fresh_name()
    with pytest.raises(Conflict):
        bridge.run(store.ledger.enter(work, 0, b"b", expected=b"a"))
    assert bridge.run(store.ledger.entry(work, 0)) is None


@pytest.mark.parametrize("value", [b"", b"\0", b"\xff\xfe", b"x" * 20_000])
def test_any_value(store: Store, value: bytes) -> None:
    """Any value is kept and compared byte for byte, also the empty one."""
    work = fresh_name()
    assert bridge.run(store.ledger.enter(work, 0, value, expected=None)) == value
    assert bridge.run(store.ledger.entry(work, 0)) == value
    assert bridge.run(store.ledger.enter(work, 0, b"next", expected=value + b"x")) == value
    assert bridge.run(store.ledger.enter(work, 0, b"next", expected=value)) == b"next"


def test_names_are_apart(store: Store) -> None:
    """Each work and each piece has its own entry, whatever the characters and the length of its name."""
    stem = fresh_name()
    works = [stem, stem + "/", f"{stem}/1", stem.upper(), f"{stem} ü€'\"%", stem + "x" * (500 - len(stem))]
    places = [(work, piece) for work in works for piece in (0, 1, 10, 1 << 40)]
    for number, (work, piece) in enumerate(places):
        bridge.run(store.ledger.enter(work, piece, str(number).encode(), expected=None))
    assert [bridge.run(store.ledger.entry(work, piece)) for work, piece in places] == [
        str(n).encode() for n in range(len(places))
    ]


def test_changed_by_many(store: Store, other: Store) -> None:
    """Each of the callers that change a piece simultaneously decides on the value that the others have left."""
    work = fresh_name()

    def count(value: bytes | None) -> Entry:
        return Entry(b"%d" % (int(value or 0) + 1))

    def change(number: int) -> bytes | None:
        return bridge.run((store, other)[number % 2].ledger.change(work, 0, count, expects_none=number > 2))

    assert {*call_concurrently(change, range(6))} == {b"1", b"2", b"3", b"4", b"5", b"6"}
    assert bridge.run(store.ledger.change(work, 0, lambda _: None)) == b"6"


def test_identity(store: Store, other: Store, open_store: Callable[[], Store]) -> None:
    """A store has one identity for all processes, whichever asks first, and after a restart."""
    identities: list[str] = []
    call_concurrently(lambda number: identities.append(bridge.run((store, other)[number % 2].identity())), range(8))
    store.close()
    assert set(identities) == {bridge.run(open_store().identity())}
    assert re.fullmatch("[0-9a-f]{32}", identities[0])


def test_the_clock(store: Store, clock: Clock) -> None:
    """The ledger's clock is the one that makes ids."""
    queue = make_queue(store)
    for _ in range(3):
        (position,) = append_bodies(store, queue, "x")
        assert abs(bridge.run(store.ledger.now()) - clock.ticks) < ids.TICKS_PER_SECOND
        assert abs(bridge.run(store.ledger.now()) - position[0]) < ids.TICKS_PER_SECOND
        clock.advance(100)


@pytest.mark.needs("one_generator")
def test_a_clock_that_steps_back(store: Store, other: Store, clock: Clock) -> None:
    """The ledger's clock is never behind a minted id, even if the machine's clock is set back."""
    (position,) = append_bodies(store, make_queue(store), "x")
    clock.advance(-3600)
    assert bridge.run(store.ledger.now()) >= position[0]
    assert bridge.run(other.ledger.now()) >= position[0]

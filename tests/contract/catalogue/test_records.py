"""Tests of records of applications, which are changed by compare-and-set."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from queuey.model import ids
from queuey.model.errors import InvalidRequest, RecordChanged
from queuey.model.messages import Record, RecordDue
from queuey.storage import Store, bridge
from queuey.storage.contracts.records import MAX_RECORD_BYTES
from tests.backends import APP
from tests.contract.samples import call_concurrently, fresh_name


def record(name: str = "name", *, kind: str = "kind", application: str = APP, due: int = ids.TICKS_MAX) -> Record:
    return Record(kind, application, name, name.encode(), due)


def test_nothing_is_there_at_first(store: Store) -> None:
    """A missing record is not found, listed or due, and cannot be changed or removed."""
    assert bridge.run(store.records.record("kind", APP, "name")) is None
    assert bridge.run(store.records.records("kind", APP)) == []
    assert bridge.run(store.records.due_records("kind", ids.TICKS_MAX)) == []
    with pytest.raises(RecordChanged):
        bridge.run(store.records.set_record(replace(record(), version=5)))
    with pytest.raises(RecordChanged):
        bridge.run(store.records.remove_record(replace(record(), version=5)))
    with pytest.raises(RecordChanged):
        bridge.run(store.records.remove_record(record()))


def test_made_once(store: Store, other: Store) -> None:
    """The first to make a record wins; every process sees it."""
    made = bridge.run(store.records.set_record(record()))
    assert made.version > 0
    assert replace(made, version=0) == record()
    with pytest.raises(RecordChanged):
        bridge.run(other.records.set_record(replace(record(), value=b"other")))
    for handle in (store, other):
        assert bridge.run(handle.records.record("kind", APP, "name")) == made


def test_compared_and_set(store: Store, other: Store) -> None:
    """A record changes only if the caller knows its version; each change makes a new version."""
    first = bridge.run(store.records.set_record(record()))
    second = bridge.run(other.records.set_record(replace(first, value=b"second", due=9)))
    assert (second.value, second.due) == (b"second", 9)
    assert second.version != first.version
    with pytest.raises(RecordChanged):
        bridge.run(store.records.set_record(replace(first, value=b"third")))
    with pytest.raises(RecordChanged):
        bridge.run(store.records.remove_record(first))
    assert bridge.run(store.records.record("kind", APP, "name")) == second
    again = bridge.run(store.records.set_record(replace(second, value=b"name", due=ids.TICKS_MAX)))
    with pytest.raises(RecordChanged):
        bridge.run(store.records.set_record(first))
    assert bridge.run(store.records.record("kind", APP, "name")) == again


def test_removed_and_made_again(store: Store, other: Store) -> None:
    """A removed record is gone for every process; a record that is made again does not get an old version."""
    first = bridge.run(store.records.set_record(record()))
    bridge.run(other.records.remove_record(first))
    assert bridge.run(store.records.record("kind", APP, "name")) is None
    assert bridge.run(store.records.records("kind", APP)) == []
    assert bridge.run(store.records.due_records("kind", ids.TICKS_MAX)) == []
    with pytest.raises(RecordChanged):
        bridge.run(store.records.set_record(first))
    second = bridge.run(store.records.set_record(record()))
    assert second.version != first.version
    with pytest.raises(RecordChanged):
        bridge.run(store.records.remove_record(first))
    assert bridge.run(store.records.record("kind", APP, "name")) == second


def test_of_many_one_changes_it(store: Store, other: Store) -> None:
    """Exactly one of several callers that change one version simultaneously succeeds."""
    made = bridge.run(store.records.set_record(record()))

    def change(number: int) -> int | None:
        try:
            return bridge.run(
                (store, other)[number % 2].records.set_record(replace(made, value=b"%d" % number))
            ).version
        except RecordChanged:
            return None

    versions = [version for version in call_concurrently(change, range(8)) if version is not None]
    stored_record = bridge.run(store.records.record("kind", APP, "name"))
    assert stored_record is not None
    assert versions == [stored_record.version]


def test_listed_by_name(store: Store) -> None:
    """An application's records of a kind are listed by name in the order of UTF-8, page by page."""
    names = [*(f"n{number:02}" for number in range(30)), "z", "é", "\uffee", "\U0001f600"]
    for name in reversed(names):
        bridge.run(store.records.set_record(record(name)))
    bridge.run(store.records.set_record(record("n05", kind="another")))
    bridge.run(store.records.set_record(record("n05", application="globex")))
    assert [found.name for found in bridge.run(store.records.records("kind", APP))] == names
    assert [found.value for found in bridge.run(store.records.records("kind", APP))] == [
        name.encode() for name in names
    ]
    page = bridge.run(store.records.records("kind", APP, limit=7))
    assert [found.name for found in page] == names[:7]
    assert [found.name for found in bridge.run(store.records.records("kind", APP, start=names[6], limit=7))] == names[
        6:13
    ]
    assert [found.name for found in bridge.run(store.records.records("kind", APP, start="n285"))] == names[29:]
    assert bridge.run(store.records.records("kind", "globex")) == [
        bridge.run(store.records.record("kind", "globex", "n05"))
    ]


def test_found_when_due(store: Store, other: Store) -> None:
    """Due records are found for one application or for all, the longest due first."""
    made = [bridge.run(store.records.set_record(record(fresh_name(), due=due))) for due in (50, 10, 40, 20, 30)]
    made.append(bridge.run(store.records.set_record(record(application="globex", due=15))))
    bridge.run(store.records.set_record(record(kind="another", due=1)))
    expected = sorted((RecordDue(each.application, each.name, each.due, each.version) for each in made), key=_due)
    assert bridge.run(other.records.due_records("kind", 9)) == []
    assert bridge.run(other.records.due_records("kind", 30)) == [each for each in expected if each.due <= 30]
    assert bridge.run(other.records.due_records("kind", 100, limit=2)) == expected[:2]
    assert bridge.run(other.records.due_records("kind", 100, application=APP)) == [
        each for each in expected if each.application == APP
    ]
    moved = bridge.run(store.records.set_record(replace(made[1], due=60)))
    assert bridge.run(other.records.due_records("kind", 20, application=APP))[0].name == made[3].name
    assert bridge.run(other.records.due_records("kind", 100))[-1] == RecordDue(APP, moved.name, 60, moved.version)


def _due(each: RecordDue) -> int:
    return each.due


def test_bounded(store: Store) -> None:
    """A value above the size limit is refused, and one at the limit is kept."""
    long = replace(record(), value=b"x" * MAX_RECORD_BYTES)
    with pytest.raises(InvalidRequest):
        bridge.run(store.records.set_record(replace(long, value=long.value + b"x")))
    with pytest.raises(InvalidRequest):
        bridge.run(store.records.set_record(replace(long, value=b"")))
    assert bridge.run(store.records.record("kind", APP, "name")) is None
    assert bridge.run(store.records.set_record(long)) == bridge.run(store.records.record("kind", APP, "name"))

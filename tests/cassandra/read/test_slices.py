"""The store is put together of parts."""

from __future__ import annotations

from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.store.connected import ConnectedStore


def test_no_part_overrides_another() -> None:
    """No two parts of the store have a method or attribute of one name: one would silently replace the other."""
    parts = [
        part for part in CassandraStore.__mro__[1:] if part.__name__.startswith("Cassandra") or part is ConnectedStore
    ]
    seen: dict[str, str] = {}
    for part in parts:
        for name, value in vars(part).items():
            if callable(value) and name != "__subclasshook__":  # Each heir of a protocol has one.
                assert name not in seen, f"{name} of {part.__name__} and {seen[name]}"
                seen[name] = part.__name__
    assert len(parts) > 1

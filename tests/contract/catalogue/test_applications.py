"""Tests of applications and their keys."""

from __future__ import annotations

import hashlib

import pytest

from queuey.model import ids
from queuey.model.errors import ApplicationExists, ApplicationNotFound, Conflict, KeyNotFound
from queuey.model.messages import OPERATORS, Key, Scope
from queuey.storage import Store, bridge
from tests.backends import APP
from tests.contract.samples import call_concurrently, eventually


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def test_pages_of_applications(store: Store, other: Store) -> None:
    """A page begins at a name, inclusive, and has its limit of names, in code point order, also beyond 16 bits."""
    names = ["A", "a", "a*", "ab", "z", "é", "\uffee", "\U0001f600"]
    for name in names:
        bridge.run(store.applications.create_application(name))
    names = sorted([*names, APP])
    for one in (store, other):
        assert bridge.run(one.applications.application_names(limit=len(names))) == names
        found: list[str] = []
        while page := bridge.run(one.applications.application_names(start=f"{found[-1]}\0" if found else "", limit=2)):
            assert len(page) <= 2
            found += page
        assert found == names
        assert bridge.run(one.applications.application_names(start="a*", limit=1)) == ["a*"]
        assert bridge.run(one.applications.application_names(start="b")) == [name for name in names if name >= "b"]
        assert bridge.run(one.applications.application_names(start="\U0001f601")) == []


def test_exists_once(store: Store, other: Store) -> None:
    """Creating an application whose name exists is refused and changes nothing."""
    bridge.run(store.applications.add_key(APP, digest("k")))
    for handle in (store, other):
        with pytest.raises(ApplicationExists):
            bridge.run(handle.applications.create_application(APP))
    assert bridge.run(store.applications.application_names()) == [APP]
    assert len(bridge.run(store.applications.keys(APP))) == 1


def test_only_one_of_many_creates(store: Store, other: Store) -> None:
    """Only one of the simultaneous callers that create an application succeeds."""

    def create(n: int) -> bool:
        try:
            bridge.run((store, other)[n % 2].applications.create_application("globex"))
        except ApplicationExists:
            return False
        return True

    assert sum(call_concurrently(create, range(8))) == 1


def test_unknown_application(store: Store) -> None:
    """An application that was never created does not exist, has no keys, and accepts none."""
    assert not bridge.run(store.applications.has_application("nobody"))
    assert bridge.run(store.applications.keys("nobody")) == []
    with pytest.raises(ApplicationNotFound):
        bridge.run(store.applications.add_key("nobody", digest("k")))
    with pytest.raises(KeyNotFound):
        bridge.run(store.applications.revoke_key("nobody", "00000000"))
    assert bridge.run(store.applications.find_key(digest("k"))) is None


def test_seen_by_other_stores(store: Store, other: Store) -> None:
    """An application that was missing is found soon after another process has created it."""
    assert not bridge.run(other.applications.has_application("globex"))
    bridge.run(store.applications.create_application("globex"))
    assert eventually(lambda: bridge.run(other.applications.has_application("globex")))


class TestKeys:
    """Keys are found by their hash."""

    def test_added_and_found(self, store: Store, other: Store) -> None:
        """A key is found by its hash in every store, with the fields it was added with."""
        key = bridge.run(store.applications.add_key(APP, digest("k"), expires=4e9, note="for the reports"))
        assert (key.application, key.expires, key.note) == (APP, 4e9, "for the reports")
        assert abs(key.created - ids.ticks_to_seconds(ids.now_ticks())) < 60
        for handle in (store, other):
            assert bridge.run(handle.applications.find_key(digest("k"))) == key
            assert bridge.run(handle.applications.find_key(digest("K"))) is None
            assert bridge.run(handle.applications.keys(APP)) == [key]

    def test_id_is_part_of_the_hash(self, store: Store) -> None:
        """The public id is the first eight hex digits of the hash, so it does not reveal the key."""
        for n in range(20):
            key = bridge.run(store.applications.add_key(APP, digest(str(n))))
            assert len(key.id) == 8
            assert key.id in digest(str(n)).hex()

    def test_of_another_application(self, store: Store) -> None:
        """A key belongs to one application and cannot be added to a second one, so that it identifies its caller."""
        bridge.run(store.applications.create_application("globex"))
        key = bridge.run(store.applications.add_key(APP, digest("k")))
        with pytest.raises(Conflict):
            bridge.run(store.applications.add_key("globex", digest("k")))
        assert bridge.run(store.applications.find_key(digest("k"))) == key
        assert bridge.run(store.applications.keys("globex")) == []

    def test_listed_oldest_first(self, store: Store) -> None:
        """All keys that are not revoked, also expired ones, are listed in the order they were added."""
        bridge.run(store.applications.create_application("globex"))
        added = [
            bridge.run(store.applications.add_key(APP, digest(str(n)), expires=None if n % 2 else 1.0))
            for n in range(12)
        ]
        theirs = bridge.run(store.applications.add_key("globex", digest("theirs")))
        assert bridge.run(store.applications.keys(APP)) == added
        assert bridge.run(store.applications.keys("globex")) == [theirs]

    def test_revoked(self, store: Store, other: Store) -> None:
        """A revoked key is not found any more; the others stay."""
        first, second = (bridge.run(store.applications.add_key(APP, digest(text))) for text in "ab")
        bridge.run(other.applications.find_key(digest("a")))
        bridge.run(store.applications.revoke_key(APP, first.id))
        for handle in (store, other):
            assert bridge.run(handle.applications.find_key(digest("a"))) is None
            assert bridge.run(handle.applications.keys(APP)) == [second]
            with pytest.raises(KeyNotFound):
                bridge.run(handle.applications.revoke_key(APP, first.id))
        again = bridge.run(store.applications.add_key(APP, digest("a")))
        assert bridge.run(other.applications.find_key(digest("a"))) == again

    def test_expire(self, store: Store, other: Store) -> None:
        """The expiry of a key can be changed; nothing else of it changes."""
        key = bridge.run(store.applications.add_key(APP, digest("k"), note="n"))
        for expires in (5e9, 1.0, 1234.5):
            changed = bridge.run(store.applications.expire_key(APP, key.id, expires))
            assert changed == Key(application=APP, id=key.id, created=key.created, expires=expires, note="n")
            assert bridge.run(other.applications.find_key(digest("k"))) == changed

    def test_scope(self, store: Store, other: Store) -> None:
        """The scope of a key stays when its expiry changes and when it is added again without a scope."""
        scope = Scope(("send", "read"), ("orders-*", 'a,b "c" é*'))
        limited, free = (
            bridge.run(store.applications.add_key(APP, digest("k"), scope=scope)),
            bridge.run(store.applications.add_key(APP, digest("free"))),
        )
        assert (limited.scope, free.scope) == (scope, None)
        changed = bridge.run(store.applications.expire_key(APP, limited.id, 5e9))
        assert (
            bridge.run(other.applications.add_key(APP, digest("k")))
            == changed
            == bridge.run(other.applications.find_key(digest("k")))
        )
        assert [key.scope for key in bridge.run(other.applications.keys(APP))] == [scope, None]

    def test_operators(self, store: Store, other: Store) -> None:
        """Operators have keys like an application's, but are not applications."""
        key = bridge.run(store.applications.add_key(OPERATORS, digest("k")))
        assert bridge.run(other.applications.find_key(digest("k"))) == key
        assert (
            bridge.run(other.applications.keys(OPERATORS)),
            bridge.run(other.applications.application_names()),
            bridge.run(other.applications.has_application(OPERATORS)),
        ) == ([key], [APP], False)
        with pytest.raises(Conflict):
            bridge.run(store.applications.add_key(APP, digest("k")))
        bridge.run(store.applications.revoke_key(OPERATORS, key.id))
        assert bridge.run(other.applications.find_key(digest("k"))) is None

    def test_unknown_key(self, store: Store) -> None:
        """An unknown id matches no key, least of all another application's."""
        bridge.run(store.applications.create_application("globex"))
        key = bridge.run(store.applications.add_key(APP, digest("k")))
        for application, name in [("globex", key.id), (APP, key.id[:7]), (APP, key.id + "0"), (APP, ""), (APP, "%")]:
            with pytest.raises(KeyNotFound):
                bridge.run(store.applications.revoke_key(application, name))
            with pytest.raises(KeyNotFound):
                bridge.run(store.applications.expire_key(application, name, 1.0))
        assert bridge.run(store.applications.keys(APP)) == [key]

    def test_ids_that_would_be_alike(self, store: Store) -> None:
        """Two keys of one application never share an id, so that revoking or expiring one cannot affect the other."""
        first = bridge.run(store.applications.add_key(APP, b"\x01\x02\x03\x04" + b"a" * 28))
        try:
            second = bridge.run(store.applications.add_key(APP, b"\x01\x02\x03\x04" + b"b" * 28))
        except Conflict:
            assert bridge.run(store.applications.keys(APP)) == [first]
            return
        assert first.id != second.id
        bridge.run(store.applications.revoke_key(APP, first.id))
        assert bridge.run(store.applications.keys(APP)) == [second]

    def test_any_hash(self, store: Store) -> None:
        """A hash may have any bytes: zeros, quotes and high bytes too."""
        hashes = [b"\0" * 32, b"\xff" * 32, b"'" * 32, b"\0" * 31 + b"\1"]
        for digest in hashes[1:]:
            bridge.run(store.applications.add_key(APP, digest))
        assert bridge.run(store.applications.find_key(hashes[0])) is None
        assert all(bridge.run(store.applications.find_key(one)) is not None for one in hashes[1:])

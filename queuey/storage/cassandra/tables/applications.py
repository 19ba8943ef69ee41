"""Applications and keys in Cassandra.

A key is found by its hash and listed by its application, so it has a row in each of two tables. The row by hash decides
whether the key exists. The row by application is written first and counts only if the row by hash agrees. Revoking
removes the row by hash, then the row by application unless another caller has added the key again and rewritten it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from queuey.model import ids
from queuey.model.errors import (
    ApplicationExists,
    ApplicationNotFound,
    Conflict,
    KeyNotFound,
    StoreClosed,
    StoreUnavailable,
)
from queuey.model.messages import OPERATORS, Key, Scope
from queuey.storage import Applications, catalogue_rows
from queuey.storage.cassandra.cluster import Statement, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import store_call
from queuey.storage.cassandra.statements.lightweight_transactions import DocumentStatements, new_number
from queuey.storage.cassandra.tables.connected import StoreParts

_APPLICATIONS = DocumentStatements("applications", "shard, name", "created")
_SELECT_NAMES = Statement("SELECT name FROM applications WHERE shard = 0 AND name >= ? LIMIT ?")
_MAX_LIMIT = (1 << 31) - 1

_KEYS = DocumentStatements("keys", "digest", "application, id, created, expires, note, scope")
_ENTRIES = DocumentStatements("application_keys", "application, id", "digest")
_SELECT_ENTRIES = Statement("SELECT id, digest, version FROM application_keys WHERE application = ?")

_CACHE_SECONDS = 5.0
"""Max seconds for which the existence of an application is cached."""
_MIN_ID_DIGITS = 8


class _KeyEntry(NamedTuple):
    id: str
    digest: bytes
    version: int


class _StoredKey(NamedTuple):
    key: Key
    version: int


class CassandraApplications(Applications):
    """Applications and keys on Cassandra.

    A key has two rows: one by application, written first and removed last, and one by digest, which decides. A key's id
    is a prefix of its digest: ``_MIN_ID_DIGITS`` digits, or more if another key of the application has these.
    """

    def __init__(self, parts: StoreParts) -> None:
        self._driver = parts.driver
        self._options = parts.options
        self._clock = parts.clock
        self._closing = parts.closing
        self._transactions = parts.transactions
        self._known: dict[str, float] = {}
        """Boot time at which each application was last found. Applications that do not exist are not cached."""

    @store_call()
    async def create_application(self, name: str) -> None:
        catalogue_rows.require_readable("application", name)
        created = ids.ticks_to_seconds(self._clock.now())
        if not await self._set(_APPLICATIONS, (0, name), (created,), new_number(), None):
            raise ApplicationExists(name)

    @store_call()
    async def application_names(self, *, start: str = "", limit: int | None = None) -> list[str]:
        # Names are the clustering key, which Cassandra keeps in the order of UTF-8 bytes.
        return [name for (name,) in await self._ask(_SELECT_NAMES, start, _MAX_LIMIT if limit is None else limit)]

    @store_call()
    async def has_application(self, name: str) -> bool:
        return await self.exists(name)

    async def exists(self, name: str) -> bool:
        """Returns whether an application exists. Remembers for a while that it does, never that it does not."""
        if self._closing.is_set():
            raise StoreClosed("the store is closed")
        now = self._clock.boottime()
        if now - self._known.get(name, -_CACHE_SECONDS) < _CACHE_SECONDS:
            return True
        is_present = bool(await self._ask(_APPLICATIONS.find, 0, name))
        if is_present:
            self._known[name] = now
        return is_present

    @store_call()
    async def add_key(
        self,
        application: str,
        digest: bytes,
        *,
        expires: float | None = None,
        note: str = "",
        scope: Scope | None = None,
    ) -> Key:
        catalogue_rows.require_readable("note", note)
        if application != OPERATORS and not await self.exists(application):
            raise ApplicationNotFound(application)
        async with self._transactions.turn(("key", digest)):
            present = await self._find_digest(digest)
            if present is not None:
                return _require_owner(present.key, application)
            entry = await self._add_entry(application, digest)
            created = ids.ticks_to_seconds(self._clock.now())
            key = Key(application=application, id=entry.id, created=created, expires=expires, note=note, scope=scope)
            if await self._set(_KEYS, (digest,), _values(key), new_number(), None):
                return key
            present = await self._find_digest(digest)
            if present is not None and present.key.application == application:
                return present.key
            await self._transactions.remove_document(_ENTRIES, (application, entry.id), entry.version)
            raise Conflict("This key belongs to another application.")

    async def _add_entry(self, application: str, digest: bytes) -> _KeyEntry:
        for length in range(_MIN_ID_DIGITS, len(digest) * 2 + 1):
            entry = _KeyEntry(digest.hex()[:length], digest, new_number())
            present: _KeyEntry | None = None
            while present is None or present.digest == digest:
                # If an earlier attempt or a key that is being revoked left this entry, it stays with a new version.
                expected = None if present is None else present.version
                if await self._set(_ENTRIES, (application, entry.id), (digest,), entry.version, expected):
                    return entry
                present = await self._find_entry(application, entry.id)
        raise StoreUnavailable("other callers are adding and revoking the same key")

    async def _set(
        self, table: DocumentStatements, key: tuple[Any, ...], values: tuple[Any, ...], token: int, expected: int | None
    ) -> bool:
        return (await self._transactions.set_document(table, key, values, token, expected)).is_done

    @store_call()
    async def keys(self, application: str) -> list[Key]:
        entries = [_KeyEntry(*row) for row in await self._ask(_SELECT_ENTRIES, application)]
        level = self._options.catalogue_read
        rows = await self._driver.ask_all([StatementRequest(_KEYS.find, (entry.digest,), level) for entry in entries])
        stored_keys = [_stored_key(row[0]).key for row in rows if row]
        listed = {(application, entry.id) for entry in entries}
        keys = {key.id: key for key in stored_keys if (key.application, key.id) in listed}
        return sorted(keys.values(), key=lambda key: (key.created, key.id))

    @store_call()
    async def revoke_key(self, application: str, key_id: str) -> None:
        while True:
            # Read the entry first: a caller that adds the key again after the removal below gives the entry a new
            # version.
            entry, stored = await self._find_named_key(application, key_id)
            if (await self._transactions.remove_document(_KEYS, (entry.digest,), stored.version)).is_done:
                with suppress(StoreUnavailable):  # The key is gone; its entry does not count.
                    await self._transactions.remove_document(_ENTRIES, (application, key_id), entry.version)
                return

    @store_call()
    async def expire_key(self, application: str, key_id: str, expires: float) -> Key:
        while True:
            entry, stored = await self._find_named_key(application, key_id)
            key = msgspec.structs.replace(stored.key, expires=expires)
            if await self._set(_KEYS, (entry.digest,), _values(key), new_number(), stored.version):
                return key

    @store_call()
    async def find_key(self, digest: bytes) -> Key | None:
        stored = await self._find_digest(digest)
        return None if stored is None else stored.key

    async def _find_named_key(self, application: str, key_id: str) -> tuple[_KeyEntry, _StoredKey]:
        """Returns a key and its row by application. Raises KeyNotFound unless both rows name each other."""
        entry = await self._find_entry(application, key_id)
        stored = None if entry is None else await self._find_digest(entry.digest)
        if (
            entry is not None
            and stored is not None
            and (stored.key.application, stored.key.id) == (application, key_id)
        ):
            return entry, stored
        raise KeyNotFound(key_id)

    async def _find_digest(self, digest: bytes) -> _StoredKey | None:
        rows = await self._ask(_KEYS.find, digest)
        return _stored_key(rows[0]) if rows else None

    async def _find_entry(self, application: str, key_id: str) -> _KeyEntry | None:
        rows = await self._ask(_ENTRIES.find, application, key_id)
        return _KeyEntry(key_id, *rows[0]) if rows else None

    async def _ask(self, statement: Statement, *values: object) -> list[Any]:
        return await self._driver.ask(StatementRequest(statement, values, self._options.catalogue_read))


def _stored_key(row: Sequence[Any]) -> _StoredKey:
    application, key_id, created, expires, note, scope, version = row
    key = Key(
        application=application,
        id=key_id,
        created=created,
        expires=expires,
        note=note or "",
        scope=catalogue_rows.decode_scope(scope),
    )
    return _StoredKey(key, version)


def _values(key: Key) -> tuple[Any, ...]:
    return key.application, key.id, key.created, key.expires, key.note, catalogue_rows.encode_scope(key.scope)


def _require_owner(key: Key, application: str) -> Key:
    if key.application != application:
        raise Conflict("This key belongs to another application.")
    return key

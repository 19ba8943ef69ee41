"""Creates and updates the keyspace (``queuey migrate``), and decides whether it fits this program.

Concurrent schema changes can leave Cassandra's nodes in permanent disagreement, so changes are made one at a time: all
through one node, under a lock that is a lightweight transaction with a TTL, and each after the nodes have agreed on the
previous one. A run that dies leaves a lock that expires, and files that are applied in part; every statement may be run
again. The changes are the numbered files under ``cql/``, each recognised by the checksum of its text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from queuey.model.errors import SettingsError, StoreIncompatible, StoreUnavailable
from queuey.storage.cassandra.admin import timing_changes
from queuey.storage.cassandra.cluster import Driver, Statement, open_driver
from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget
from queuey.storage.cassandra.cluster.timing import KeyspaceTiming
from queuey.storage.cassandra.statements.lightweight_transactions import LightweightTransactions

_NAME = re.compile(r"([0-9]{3})_([a-z0-9_]+)\.cql")
_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* | //[^\n]* | /\*.*?\*/ )
    | (?P<quoted> '(?:[^']|'')*' | "(?:[^"]|"")*" | \$\$.*?\$\$ )
    | (?P<end> ; )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
STATEMENT_TIMEOUT = 30.0
AGREEMENT_TIMEOUT = 60.0

Tell = Callable[[str], None]

_SELECT_REPLICATION = Statement("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?")
_FIND_MIGRATIONS_TABLE = Statement(
    "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ? AND table_name = 'migrations'"
)
_SELECT_RECORDED = Statement("SELECT number, name, checksum FROM migrations WHERE singleton = 0")
_RECORD_MIGRATION = Statement(
    "INSERT INTO migrations (singleton, number, name, checksum, applied_at) VALUES (0, ?, ?, ?, ?) IF NOT EXISTS",
    idempotent=False,
)
_SET_LOCK = Statement("UPDATE migrations USING TTL ? SET lock = ? WHERE singleton = 0 IF lock = ?", idempotent=False)
_CLEAR_LOCK = Statement("UPDATE migrations SET lock = null WHERE singleton = 0 IF lock = ?", idempotent=False)

_FACTOR = re.compile(r"[0-9]{1,3}")
_DATA_CENTRE = re.compile(r"[A-Za-z0-9_.-]+")


class SchemaMigration(NamedTuple):
    """A numbered file.

    Attributes:
        checksum: SHA-256 of the text, in hex.
        statements: Statements without comments. Each may be run again.
    """

    number: int
    name: str
    checksum: str
    statements: tuple[str, ...]


def split_statements(text: str) -> list[str]:
    """Splits a text at semicolons outside quotes; drops comments and empty statements."""
    statements, current = [], ""
    for token in _TOKEN.finditer(text):
        if token["end"]:
            statements.append(current)
            current = ""
        else:
            current += " " if token["comment"] else token[0]
    return [statement.strip() for statement in (*statements, current) if statement.strip()]


def parse(file_name: str, text: str) -> SchemaMigration:
    match = _NAME.fullmatch(file_name)
    if match is None:
        raise ValueError(f"{file_name!r} is not a valid file name: use NNN_what.cql")
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return SchemaMigration(int(match[1]), file_name.removesuffix(".cql"), checksum, tuple(split_statements(text)))


def find_directory() -> Path:
    installed = Path(__file__).parents[1] / "cql"
    return installed if installed.is_dir() else Path(__file__).parents[4] / "cql"


@cache
def read_known_migrations() -> tuple[SchemaMigration, ...]:
    files = sorted(find_directory().glob("*.cql"))
    return tuple(parse(path.name, path.read_text(encoding="utf-8")) for path in files)


class AppliedMigration(NamedTuple):
    number: int
    name: str
    checksum: str


@dataclasses.dataclass(frozen=True)
class MigrationEnvironment:
    """The environment of a run; only tests replace it.

    Attributes:
        lock_ttl: Seconds until the lock expires; longer than a statement and the agreement after it can take.
    """

    known: tuple[SchemaMigration, ...] = dataclasses.field(default_factory=read_known_migrations)
    driver: Callable[..., Driver] = Driver
    connect_timeout: float = 20.0
    lock_ttl: int = 300
    lock_retry_interval: float = 1.0


class Report(NamedTuple):
    """The changes that a run made, or would make with ``dry_run``.

    Attributes:
        replication: Replication of the keyspace that was created; None if it existed.
        timing: Timing that was written; None if the keyspace had one.
    """

    keyspace: str
    replication: Mapping[str, str] | None
    migrations: tuple[SchemaMigration, ...]
    timing: KeyspaceTiming | None = None


def parse_replication(text: str) -> dict[str, str]:
    """Parses the number of copies: ``3`` (SimpleStrategy) or ``dc1=3,dc2=3`` (each data centre).

    Returns the keyspace's replication map. Raises SettingsError if the text is anything else.
    """
    if _FACTOR.fullmatch(text) and int(text):
        return {"class": "SimpleStrategy", "replication_factor": str(int(text))}
    replication = {"class": "NetworkTopologyStrategy"}
    for item in text.split(","):
        name, equals, factor = (piece.strip() for piece in item.partition("="))
        if not (equals and _DATA_CENTRE.fullmatch(name) and _FACTOR.fullmatch(factor) and int(factor)):
            raise SettingsError(f"{text!r} is not a valid number of copies: use 3, or dc1=3,dc2=3.")
        if name in replication:
            raise SettingsError(f"{text!r} names {name} twice.")
        replication[name] = str(int(factor))
    return replication


def find_pending(
    keyspace: str, files: Sequence[SchemaMigration], recorded: Sequence[AppliedMigration]
) -> list[SchemaMigration]:
    """Returns the migrations that are still to be applied to a keyspace, in order.

    Raises:
        StoreIncompatible: The keyspace has a migration that this program does not know, or knows with another text.
    """
    checksums = {migration.number: migration.checksum for migration in files}
    if edited := [name for number, name, checksum in recorded if checksums.get(number, checksum) != checksum]:
        raise StoreIncompatible(
            f"keyspace {keyspace} cannot be used: it was made with another {edited[0]}.cql, and was not changed. "
            "Archive its queues with that version, or start anew in another one"
        )
    if newer := [name for number, name, _ in recorded if number not in checksums]:
        raise StoreIncompatible(
            f"keyspace {keyspace} cannot be used: a newer version of Queuey has changed it ({newer[0]}.cql). "
            "Update this program"
        )
    done = {applied.number for applied in recorded}
    return [migration for migration in files if migration.number not in done]


def schema_problem(driver: Driver) -> str | None:
    """Returns why this program cannot use the keyspace: of another version, or without tables; else None."""
    keyspace = driver.target.keyspace
    try:
        missing = _read_pending(driver, read_known_migrations())
    except StoreIncompatible as error:
        return str(error)
    if not missing:
        return None
    if len(missing) == len(read_known_migrations()):
        return f"keyspace {keyspace} has no tables yet; run `queuey migrate`"
    names = ", ".join(migration.name for migration in missing)
    return f"keyspace {keyspace} is older than this version of Queuey (it lacks {names}); run `queuey migrate`"


def migrate(
    target: DataCentreTarget,
    options: CassandraOptions,
    *,
    replication: str | None = None,
    dry_run: bool = False,
    tell: Tell = lambda _: None,
    running: MigrationEnvironment | None = None,
) -> Report:
    """Creates the keyspace if it does not exist, and applies the migrations that it lacks.

    Args:
        replication: See :func:`parse_replication`; required if the keyspace does not exist.
        dry_run: Change nothing, only report the steps.

    Raises:
        SettingsError: ``replication`` is missing, invalid, or not that of the keyspace.
        StoreIncompatible: Another version of this program made or changed the keyspace.
        StoreUnavailable: Cassandra cannot be reached, or another run has the lock. Completed steps are kept.
    """
    requested = None if replication is None else parse_replication(replication)
    options = dataclasses.replace(options, timeout=STATEMENT_TIMEOUT)  # No request waits for it, and nodes may be busy.
    running = running or MigrationEnvironment()
    reach = partial(open_driver, target, options, running.connect_timeout, driver=running.driver)
    with reach(keyspace=False) as driver:
        present = _read_replication(driver)
        if present is None:
            created = _check_replication(driver, requested)
            if dry_run:
                return Report(target.keyspace, created, running.known)
            _make_keyspace(driver, options, created)
            tell(f"keyspace {target.keyspace}: created with {describe_replication(created)}")
        else:
            created = None
            if requested is not None and requested != present:
                raise SettingsError(
                    f"Keyspace {target.keyspace} has {describe_replication(present)}, "
                    f"not {describe_replication(requested)}. "
                    "Change it with ALTER KEYSPACE and repair it; see docs/operations.md."
                )
    with reach() as driver:
        if dry_run:
            return Report(target.keyspace, created, tuple(_read_pending(driver, running.known)))
        return Report(target.keyspace, created, *_apply_missing(driver, options, tell, running))


def _apply_missing(
    driver: Driver, options: CassandraOptions, tell: Tell, running: MigrationEnvironment
) -> tuple[tuple[SchemaMigration, ...], KeyspaceTiming | None]:
    first, *_ = known = running.known
    # This creates the table that holds the lock, unless it exists. A read instead could find a table that another run
    # is just creating, and that cannot be used yet.
    for statement in first.statements:
        _change_schema(driver, options, statement)
    if not _read_pending(driver, known):
        return (), timing_changes.write_first_timing(driver, options, tell)
    lock = _Lock(driver, options, tell, running)
    with lock:
        missing = _read_pending(driver, known)
        for migration in missing:
            for statement in migration.statements:
                lock.renew()
                _change_schema(driver, options, statement)
            lock.renew()
            values = migration.number, migration.name, migration.checksum, time.time()
            lock.transactions.wait(_RECORD_MIGRATION, values)
            tell(f"{migration.name}: applied")
    return tuple(missing), timing_changes.write_first_timing(driver, options, tell)


class _Lock:
    """The lock on schema changes, held for ``lock_ttl`` after it was acquired or last renewed."""

    def __init__(self, driver: Driver, options: CassandraOptions, tell: Tell, running: MigrationEnvironment) -> None:
        self.transactions = LightweightTransactions(driver, options, driver.calls.deadline.clock)
        self._tell = tell
        self._running = running
        self._owner = f"{socket.gethostname()} process {os.getpid()} ({secrets.token_hex(4)})"

    def __enter__(self) -> None:
        until = time.monotonic() + self._running.lock_ttl + AGREEMENT_TIMEOUT
        is_reported = False
        while (holder := self._acquire(None)) != self._owner:
            if time.monotonic() > until:
                raise StoreUnavailable(f"{holder} has been changing the schema for too long")
            if not is_reported:
                self._tell(f"waiting for {holder}, which is changing the schema")
                is_reported = True
            time.sleep(self._running.lock_retry_interval)

    def __exit__(self, *_: object) -> None:
        with suppress(StoreUnavailable):  # The lock then expires.
            self.transactions.wait(_CLEAR_LOCK, (self._owner,))

    def renew(self) -> None:
        holder = self._acquire(self._owner)
        if holder != self._owner:
            raise StoreUnavailable(f"the lock for schema changes is now held by {holder or 'no process'}")

    def _acquire(self, expected: str | None) -> str | None:
        result = self.transactions.wait(_SET_LOCK, (self._running.lock_ttl, self._owner, expected), self._owner)
        if result.is_done:
            return self._owner
        return result.row[-1] if result.row else None


def _read_replication(driver: Driver) -> dict[str, str] | None:
    rows = driver.run(_SELECT_REPLICATION, (driver.target.keyspace,), consistency="ONE")
    if not rows:
        return None
    replication = {str(name): str(value) for name, value in rows[0][0].items()}
    replication["class"] = replication["class"].rpartition(".")[2]
    return replication


def _check_replication(driver: Driver, requested: dict[str, str] | None) -> dict[str, str]:
    hosts = driver.hosts()
    centres = {name: sum(host.dc == name for host in hosts) for name in sorted({host.dc for host in hosts})}
    nodes = ", ".join(f"{name} ({count} nodes)" if count > 1 else f"{name} (1 node)" for name, count in centres.items())
    if requested is None:
        example = ",".join(f"{name}={min(3, count)}" for name, count in centres.items())
        raise SettingsError(
            f"Keyspace {driver.target.keyspace} does not exist. Give the number of copies to create it with, such as "
            f"--replication {example} (the data centres are: {nodes})."
        )
    if requested["class"] == "SimpleStrategy":
        centres = {"replication_factor": len(hosts)}
    for name, factor in requested.items():
        if name != "class" and int(factor) > centres.get(name, 0):
            raise SettingsError(f"There are too few nodes for {describe_replication(requested)}: {nodes}.")
    return requested


def _make_keyspace(driver: Driver, options: CassandraOptions, replication: Mapping[str, str]) -> None:
    pairs = ", ".join(f"'{name}': '{value}'" for name, value in replication.items())
    name = driver.target.keyspace
    _change_schema(driver, options, f'CREATE KEYSPACE IF NOT EXISTS "{name}" WITH replication = {{{pairs}}}')


def _read_recorded(driver: Driver) -> list[AppliedMigration]:
    if not driver.run(_FIND_MIGRATIONS_TABLE, (driver.target.keyspace,), consistency="ONE"):
        return []
    return [AppliedMigration(*row) for row in driver.run(_SELECT_RECORDED) if row[0] is not None]


def _read_pending(driver: Driver, files: Sequence[SchemaMigration]) -> list[SchemaMigration]:
    return find_pending(driver.target.keyspace, files, _read_recorded(driver))


def _change_schema(driver: Driver, options: CassandraOptions, statement: str) -> None:
    """Makes one change through the node that every run chooses, and waits until all nodes have it."""
    near = sorted(host.address for host in driver.hosts() if host.up and options.local_dc in {None, host.dc})
    if not near:
        raise StoreUnavailable("no Cassandra node is up")
    driver.await_pools(STATEMENT_TIMEOUT)
    driver.run(Statement.make_unprepared(statement), timeout=STATEMENT_TIMEOUT, host=near[0])
    until = time.monotonic() + AGREEMENT_TIMEOUT
    while not driver.await_schema_agreement():
        if time.monotonic() > until:
            raise StoreUnavailable("the Cassandra nodes do not agree on the schema; see `nodetool describecluster`")


def describe_replication(replication: Mapping[str, str]) -> str:
    if replication["class"] == "SimpleStrategy":
        factor = replication["replication_factor"]
        return "1 copy" if factor == "1" else f"{factor} copies"
    return ", ".join(f"{name}={value}" for name, value in replication.items() if name != "class")

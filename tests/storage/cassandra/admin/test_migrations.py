"""Tests of ``queuey migrate``, and of the errors for a keyspace with another schema version."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from queuey.model.errors import SettingsError, StoreIncompatible, StoreUnavailable
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraOptions, CassandraStore, open_store
from queuey.storage.cassandra.admin import migrations
from queuey.storage.cassandra.admin.migrations import (
    AppliedMigration,
    MigrationEnvironment,
    SchemaMigration,
    find_directory,
    find_pending,
    migrate,
    parse,
    parse_replication,
    read_known_migrations,
)
from queuey.storage.cassandra.cluster import Driver, Statement
from queuey.storage.cassandra.cluster.options import DataCentreTarget
from tests.contract.samples import becomes_healthy
from tests.servers.plugin import Cassandra, unique_name
from tests.storage.cassandra.interposed import UNLIMITED, Wire
from tests.waiting import PATIENCE_SECONDS

OPTIONS = CassandraOptions(timeout=60.0)
FIRST = read_known_migrations()[0]
TABLE = "CREATE TABLE IF NOT EXISTS {} (k int PRIMARY KEY);"
BEATS = "CREATE TABLE IF NOT EXISTS heartbeats (process text PRIMARY KEY, seen_at bigint);"
SECOND = parse("001_some.cql", TABLE.format("a") + BEATS)
THIRD = parse("002_more.cql", TABLE.format("c"))
ALL = (FIRST, SECOND, THIRD)
RUNNING = MigrationEnvironment(ALL)


def made(*some: SchemaMigration) -> list[AppliedMigration]:
    return [AppliedMigration(one.number, one.name, one.checksum) for one in some]


def test_what_is_not_recorded() -> None:
    """All files that are not recorded are pending, in order, also after a run that left a gap."""
    assert find_pending("k", ALL, []) == list(ALL)
    assert find_pending("k", ALL, made(FIRST)) == [SECOND, THIRD]
    assert find_pending("k", ALL, made(THIRD, FIRST)) == [SECOND]
    assert find_pending("k", ALL, made(*ALL)) == []


@pytest.mark.parametrize(
    ("text", "replication"),
    [
        ("1", {"class": "SimpleStrategy", "replication_factor": "1"}),
        ("03", {"class": "SimpleStrategy", "replication_factor": "3"}),
        ("dc1=3", {"class": "NetworkTopologyStrategy", "dc1": "3"}),
        ("eu-west.1=3, us=2", {"class": "NetworkTopologyStrategy", "eu-west.1": "3", "us": "2"}),
    ],
)
def test_replication(text: str, replication: dict[str, str]) -> None:
    """A single number applies to all nodes; pairs apply to data centres."""
    assert parse_replication(text) == replication


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "x", "dc1", "dc1=", "dc1=0", "=3", "dc1=3,", "a=1,a=2", "d'c=1", "dc1=3;"]
)
def test_bad_replication(text: str) -> None:
    """Invalid replication is refused before Cassandra is asked, and no part of it gets into a statement."""
    with pytest.raises(SettingsError):
        parse_replication(text)


@pytest.fixture
def target(cassandra: Cassandra) -> Iterator[DataCentreTarget]:
    """Names a keyspace that does not exist yet; dropped at the end."""
    new_target = DataCentreTarget(tuple(cassandra.contact_points), unique_name("migrate"), cassandra.port)
    yield new_target
    driver = Driver(new_target, OPTIONS, keyspace=False)
    assert driver.ready(60)
    driver.run(Statement.make_unprepared(f"DROP KEYSPACE IF EXISTS {new_target.keyspace}"), timeout=60.0)
    driver.close()


@pytest.fixture
def driver(target: DataCentreTarget) -> Iterator[Driver]:
    """A connected driver without a keyspace, which a migration creates."""
    opened = Driver(target, OPTIONS, keyspace=False)
    assert opened.ready(60)
    yield opened
    opened.close()


def tables(driver: Driver) -> set[str]:
    keyspace = driver.target.keyspace
    statement = Statement("SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?")
    return {name for (name,) in driver.run(statement, (keyspace,), consistency="ONE")}


def names(some: Sequence[SchemaMigration]) -> list[str]:
    return [one.name for one in some]


@pytest.mark.parametrize(
    ("replication", "why"), [(None, "--replication"), ("900", "too few"), ("nowhere=1", "too few")]
)
def test_keyspace_that_cannot_be_made(
    target: DataCentreTarget, driver: Driver, replication: str | None, why: str
) -> None:
    """A new keyspace needs a replication factor, and enough nodes for it; the error names the data centres."""
    with pytest.raises(SettingsError, match=why) as refused:
        migrate(target, OPTIONS, replication=replication)
    assert all(host.dc in str(refused.value) for host in driver.hosts())
    assert migrations._read_replication(driver) is None


def is_refused(store: CassandraStore, why: str) -> bool:
    """Pings a store, which checks its keyspace once a second, for up to a minute; returns whether it refuses it.

    Fails if a ping succeeds. ``why`` is a part of the error's text.
    """
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with pytest.raises(StoreUnavailable) as caught:
            bridge.run(store.ping())
        if why in str(caught.value):
            return True
    return False


def test_store_waits_for_it(target: DataCentreTarget) -> None:
    """A store on a missing or old keyspace says what to do, and works once that is done; a newer one is refused."""
    known = read_known_migrations()
    store = open_store(target.url, options=OPTIONS)
    try:
        assert is_refused(store, "does not exist; run `queuey migrate`")
        migrate(target, OPTIONS, replication="1", running=MigrationEnvironment(known[:1]))
        assert is_refused(store, "older than this version")
        migrate(target, OPTIONS)
        assert becomes_healthy(store)
        migrate(target, OPTIONS, running=MigrationEnvironment((*known, parse("900_more.cql", TABLE.format("c")))))
        with pytest.raises(StoreUnavailable, match="newer"):
            bridge.run(store.ping())
        with pytest.raises(StoreIncompatible):
            migrate(target, OPTIONS)
    finally:
        store.close()


def test_early_keyspace(target: DataCentreTarget, driver: Driver) -> None:
    """A keyspace of another text is refused by a migration, its dry run and the store, and stays as it was."""
    early = parse("000_migrations.cql", (find_directory() / "000_migrations.cql").read_text() + "-- early")
    migrate(target, OPTIONS, replication="1", running=MigrationEnvironment((early, SECOND)))
    columns = Statement("SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = ?")
    rows = Statement.make_unprepared(f"SELECT * FROM {target.keyspace}.migrations")
    before = driver.run(columns, (target.keyspace,), consistency="ONE"), driver.run(rows)
    reason = f"keyspace {target.keyspace} .*with another 000_migrations.cql.*Archive .*start anew"
    for dry_run in (True, False):
        with pytest.raises(StoreIncompatible, match=reason):
            migrate(target, OPTIONS, dry_run=dry_run)
    with closing(open_store(target.url, options=OPTIONS)) as store:
        assert is_refused(store, "with another 000_migrations")
    assert (driver.run(columns, (target.keyspace,), consistency="ONE"), driver.run(rows)) == before


def makes_table(name: str) -> Callable[[Statement], bool]:
    return lambda statement: f"NOT EXISTS {name} " in statement.cql


def test_goes_on_after_a_crash(target: DataCentreTarget, driver: Driver) -> None:
    """A run that dies in the middle of a file leaves the lock and half the file; later runs wait and finish it."""
    running, wire = MigrationEnvironment(ALL, lock_ttl=600, lock_retry_interval=0.05), Wire()
    table = f"{target.keyspace}.migrations"

    wire.after_answer(
        makes_table("a"), lambda: wire.fail(lambda _: True, UNLIMITED)
    )  # Cassandra gets no request from here on.
    with pytest.raises(StoreUnavailable):
        migrate(target, OPTIONS, replication="1", running=replace(running, driver=wire.driver))
    assert tables(driver) == {"migrations", "a"}
    [[remaining_ttl]] = driver.run(
        Statement.make_unprepared(f"SELECT TTL(lock) FROM {table} WHERE singleton = 0 LIMIT 1")
    )
    assert 0 < remaining_ttl <= 600
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if line.startswith("waiting for "):  # The lock expires here at once.
            driver.run(Statement.make_unprepared(f"UPDATE {table} SET lock = null WHERE singleton = 0 IF EXISTS"))

    assert names(migrate(target, OPTIONS, tell=tell, running=running).migrations) == names([SECOND, THIRD])
    assert [line.startswith("waiting for ") for line in told] == [True, False, False, False]
    assert tables(driver) == {"migrations", "a", "heartbeats", "c"}


def test_several_at_once(target: DataCentreTarget, driver: Driver) -> None:
    """With several simultaneous runs on an empty keyspace each migration is made by one of them, and all succeed."""
    started = threading.Barrier(3)

    def run(_: int) -> list[str]:
        started.wait(PATIENCE_SECONDS)
        return names(migrate(target, OPTIONS, replication="1", running=RUNNING).migrations)

    with ThreadPoolExecutor(3) as pool:
        done = [name for found in pool.map(run, range(3)) for name in found]
    assert sorted(done) == sorted(names(ALL))
    assert tables(driver) == {"migrations", "a", "heartbeats", "c"}


def test_who_lost_the_lock_stops(target: DataCentreTarget, driver: Driver) -> None:
    """A run that lost its lock to another run changes nothing more."""
    migrate(target, OPTIONS, replication="1", running=RUNNING)
    keyed = Driver(target, OPTIONS)
    assert keyed.ready(60)
    take = Statement("UPDATE migrations SET lock = 'another' WHERE singleton = 0 IF EXISTS", idempotent=False)
    keyed.run(Statement("DELETE FROM migrations WHERE singleton = 0 AND number = 1 IF EXISTS", idempotent=False))
    keyed.run(Statement.make_unprepared(f"DROP TABLE {target.keyspace}.heartbeats"), timeout=60.0)
    slow = Wire()
    slow.after_answer(makes_table("a"), lambda: keyed.run(take))
    with pytest.raises(StoreUnavailable, match="another"):
        migrate(target, OPTIONS, running=replace(RUNNING, driver=slow.driver))
    keyed.close()
    assert "heartbeats" not in tables(driver)


def test_lock_in_doubt(target: DataCentreTarget) -> None:
    """Lock steps whose answers are lost are repeated: the lock names its owner, so the run recognizes its own lock."""
    steps, wire = (migrations._SET_LOCK, migrations._RECORD_MIGRATION, migrations._CLEAR_LOCK), Wire()
    for step in steps:
        wire.lose([step])
    running = MigrationEnvironment(ALL, driver=wire.driver, lock_retry_interval=0.01)
    assert names(migrate(target, OPTIONS, replication="1", running=running).migrations) == names(ALL)
    made = len(SECOND.statements) + len(THIRD.statements) + len(FIRST.statements)
    # The lock is acquired, then renewed before each change and each record; the first of each kind is sent twice.
    assert [wire.log.count([step]) for step in steps] == [1 + made + len(ALL) + 1, len(ALL) + 1, 2]
    assert migrate(target, OPTIONS, running=RUNNING).migrations == ()

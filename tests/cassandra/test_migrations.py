"""``queuey migrate``, and what is said about a keyspace that does not fit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from queuey.errors import SettingsError, StoreIncompatible, StoreUnavailable
from queuey.storage.cassandra import CassandraOptions, cql_files, migrations, open_store
from queuey.storage.cassandra.cql_files import Migration, parse
from queuey.storage.cassandra.driver import Driver, InDoubt, Statement
from queuey.storage.cassandra.migrations import Recorded, migrate, parse_replication, pending, schema_problem
from queuey.storage.cassandra.options import Target
from tests.servers import Cassandra, unique_name

OPTIONS = CassandraOptions(timeout=20.0)
FIRST = cql_files.known()[0]
TABLE = "CREATE TABLE IF NOT EXISTS {} (k int PRIMARY KEY);"
BEATS = "CREATE TABLE IF NOT EXISTS heartbeats (process text PRIMARY KEY, at bigint);"
SECOND = parse("001_some.cql", TABLE.format("a") + BEATS)
THIRD = parse("002_more.cql", TABLE.format("c"))
ALL = (FIRST, SECOND, THIRD)

Know = Callable[..., None]


def made(*some: Migration) -> list[Recorded]:
    """Migrations as they are recorded."""
    return [Recorded(one.number, one.name, one.checksum) for one in some]


class TestPending:
    """What is still to be made."""

    def test_what_is_not_recorded(self) -> None:
        """Everything that is not recorded, in order, also where a run left a gap."""
        assert pending(ALL, []) == list(ALL)
        assert pending(ALL, made(FIRST)) == [SECOND, THIRD]
        assert pending(ALL, made(THIRD, FIRST)) == [SECOND]
        assert pending(ALL, made(*ALL)) == []

    def test_newer(self) -> None:
        """A keyspace with a change that this program does not know is refused, with the change's name."""
        with pytest.raises(StoreIncompatible, match="002_more"):
            pending(ALL[:2], made(*ALL))

    def test_edited(self) -> None:
        """A file that was edited after it was run is refused: nobody knows what the keyspace has."""
        edited = SECOND._replace(checksum="0" * 64)
        with pytest.raises(StoreIncompatible, match=r"001_some.*edited"):
            pending((FIRST, edited, THIRD), made(*ALL))


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
    """A number is for all nodes, pairs are for data centres."""
    assert parse_replication(text) == replication


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "x", "dc1", "dc1=", "dc1=0", "=3", "dc1=3,", "a=1,a=2", "d'c=1", "dc1=3;"]
)
def test_bad_replication(text: str) -> None:
    """Anything else is refused before Cassandra is asked; nothing of it gets into a statement."""
    with pytest.raises(SettingsError):
        parse_replication(text)


@pytest.fixture
def know(monkeypatch: pytest.MonkeyPatch) -> Know:
    """Lets the program know these migrations and no others."""

    def set_known(*some: Migration) -> None:
        monkeypatch.setattr(cql_files, "known", lambda: some)

    set_known(*ALL)
    return set_known


@pytest.fixture
def target(cassandra: Cassandra) -> Iterator[Target]:
    """A keyspace that is not there yet; dropped at the end."""
    found = Target(tuple(cassandra.contact_points), unique_name("migrate"), cassandra.port)
    yield found
    driver = Driver(found, OPTIONS, keyspace=False)
    assert driver.ready(60)
    driver.run_text(f"DROP KEYSPACE IF EXISTS {found.keyspace}", timeout=60.0)
    driver.close()


@pytest.fixture
def driver(target: Target) -> Iterator[Driver]:
    """A driver without a keyspace."""
    opened = Driver(target, OPTIONS, keyspace=False)
    assert opened.ready(60)
    yield opened
    opened.close()


def tables(driver: Driver) -> set[str]:
    """The tables of the keyspace."""
    keyspace = driver.target.keyspace
    statement = Statement("SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?")
    return {name for (name,) in driver.run(statement, (keyspace,), consistency="ONE")}


def names(some: Sequence[Migration]) -> list[str]:
    """The migrations' names."""
    return [one.name for one in some]


@pytest.mark.usefixtures("know")
def test_from_nothing(target: Target, driver: Driver) -> None:
    """The first run makes the keyspace and everything in it, a dry run before it nothing; the next one has no work."""
    assert schema_problem(driver) == f"keyspace {target.keyspace} has no tables yet; run `queuey migrate`"
    planned = migrate(target, OPTIONS, replication="1", dry_run=True)
    assert names(planned.migrations) == names(ALL)
    assert tables(driver) == set()
    told: list[str] = []
    report = migrate(target, OPTIONS, replication="1", tell=told.append)
    assert report == planned
    assert [line.partition(":")[0] for line in told] == [f"keyspace {target.keyspace}", *names(ALL)]
    assert tables(driver) == {"migrations", "a", "heartbeats", "c"}
    assert migrate(target, OPTIONS).migrations == ()
    assert migrate(target, OPTIONS, replication="1", dry_run=True).migrations == ()
    with pytest.raises(SettingsError, match="1 copy"):
        migrate(target, OPTIONS, replication="2")


@pytest.mark.parametrize(
    ("replication", "why"), [(None, "--replication"), ("900", "too few"), ("nowhere=1", "too few")]
)
def test_keyspace_that_cannot_be_made(target: Target, driver: Driver, replication: str | None, why: str) -> None:
    """A new keyspace needs to know how many copies to keep, and the nodes for them; the data centres are named."""
    with pytest.raises(SettingsError, match=why) as refused:
        migrate(target, OPTIONS, replication=replication)
    assert all(host.dc in str(refused.value) for host in driver.hosts())
    assert migrations._replication(driver) is None


def test_by_data_centre(target: Target, driver: Driver, know: Know) -> None:
    """Copies can be given by data centre; a later run may repeat that, and not change it."""
    know(FIRST)
    (host, *_) = driver.hosts()
    migrate(target, OPTIONS, replication=f"{host.dc}=1")
    assert migrate(target, OPTIONS, replication=f"{host.dc}=1").replication is None
    with pytest.raises(SettingsError, match=f"{host.dc}=1"):
        migrate(target, OPTIONS, replication="1")


def test_store_waits_for_it(target: Target, know: Know, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store on a keyspace that is missing or old says what to do, and works once that is done; newer is refused."""
    monkeypatch.setattr("queuey.storage.cassandra.PREPARED", ())  # These files make other tables.
    know(*ALL[:2])
    store = open_store(target.url, options=OPTIONS)
    try:
        with pytest.raises(StoreUnavailable, match="queuey migrate"):
            store.ping()
        migrate(target, OPTIONS, replication="1")
        assert store.ready(60)
        know(*ALL)
        with pytest.raises(StoreUnavailable, match="older than this version"):
            store.ping()
        migrate(target, OPTIONS)
        store.ping()
        know(*ALL[:2])
        with pytest.raises(StoreUnavailable, match="newer"):
            store.ping()
        with pytest.raises(StoreIncompatible):
            migrate(target, OPTIONS)
    finally:
        store.close()


@pytest.mark.usefixtures("know")
def test_goes_on_after_a_crash(target: Target, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that dies in the middle of a file leaves the lock and half the file; later runs wait, and finish it."""
    monkeypatch.setattr(migrations, "LOCK_TTL", 3)
    monkeypatch.setattr(migrations, "_LOCK", _lock_with_ttl(3))
    change, left = migrations._change_schema, 4

    def dying(driver: Driver, options: CassandraOptions, statement: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        change(driver, options, statement)

    with monkeypatch.context() as patched:
        patched.setattr(migrations, "_change_schema", dying)
        patched.setattr(migrations._Lock, "__exit__", lambda self, *_: None)
        with pytest.raises(KeyboardInterrupt):
            migrate(target, OPTIONS, replication="1")
    assert tables(driver) == {"migrations"}
    told: list[str] = []
    assert names(migrate(target, OPTIONS, tell=told.append).migrations) == names([SECOND, THIRD])
    assert told[0].startswith("waiting for ")
    assert tables(driver) == {"migrations", "a", "heartbeats", "c"}


def _lock_with_ttl(seconds: int) -> Statement:
    return Statement(migrations._LOCK.cql.replace("TTL 300", f"TTL {seconds}"), idempotent=False)


@pytest.mark.usefixtures("know")
def test_several_at_once(target: Target, driver: Driver) -> None:
    """Of several runs at once on an empty keyspace every change is made by one, and all end well."""
    started = threading.Barrier(3)

    def run(_: int) -> list[str]:
        started.wait()
        return names(migrate(target, OPTIONS, replication="1").migrations)

    with ThreadPoolExecutor(3) as pool:
        done = [name for found in pool.map(run, range(3)) for name in found]
    assert sorted(done) == sorted(names(ALL))
    assert tables(driver) == {"migrations", "a", "heartbeats", "c"}


@pytest.mark.usefixtures("know")
def test_who_lost_the_lock_stops(target: Target, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that took so long that another one has the lock changes nothing more."""
    migrate(target, OPTIONS, replication="1")
    change = migrations._change_schema
    keyed = Driver(target, OPTIONS)
    assert keyed.ready(60)

    def slow(driver: Driver, options: CassandraOptions, statement: str) -> None:
        if "NOT EXISTS a " in statement:
            keyed.run(Statement("UPDATE migrations SET lock = 'another' WHERE one = 0 IF EXISTS", idempotent=False))
        change(driver, options, statement)

    keyed.run(Statement("DELETE FROM migrations WHERE one = 0 AND number = 1 IF EXISTS", idempotent=False))
    keyed.run_text(f"DROP TABLE {target.keyspace}.heartbeats", timeout=60.0)
    monkeypatch.setattr(migrations, "_change_schema", slow)
    with pytest.raises(StoreUnavailable, match="another"):
        migrate(target, OPTIONS)
    keyed.close()
    assert "heartbeats" not in tables(driver)


@pytest.mark.usefixtures("know")
def test_lock_in_doubt(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of the lock whose answers are lost are repeated: the owner is in them, so it knows itself again."""
    run, lost = Driver.run, set[Statement]()

    def losing(self: Driver, statement: Statement, values: Sequence[Any] = (), **options: Any) -> Any:  # noqa: ANN401 - the driver's
        answer = run(self, statement, values, **options)
        if not statement.idempotent and statement not in lost:
            lost.add(statement)
            raise InDoubt("the answer was lost")
        return answer

    monkeypatch.setattr(Driver, "run", losing)
    monkeypatch.setattr(migrations, "LOCK_EVERY", 0.01)
    assert names(migrate(target, OPTIONS, replication="1").migrations) == names(ALL)
    assert {migrations._LOCK, migrations._RECORD, migrations._UNLOCK} <= lost
    assert migrate(target, OPTIONS).migrations == ()


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Cassandra a run ends soon and says that nobody answered."""
    monkeypatch.setattr(migrations, "CONNECT_TIMEOUT", 2.0)
    with pytest.raises(StoreUnavailable, match="reached"):
        migrate(Target(("127.0.0.1",), "nothing", 1), OPTIONS, replication="1")

"""``queuey doctor`` on a Cassandra store: asks every node and the keyspace; :mod:`.doctor_rules` judges the answers.

It has its own connection and needs no schema, so it also helps when a store cannot be opened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import UUID

from queuey.model.errors import SettingsError, StoreUnavailable
from queuey.model.ids import EPOCH_TICKS, TICKS_PER_SECOND
from queuey.model.messages import Finding
from queuey.storage.cassandra.admin import doctor_rules, migrations, node_settings, timing_changes
from queuey.storage.cassandra.admin.node_settings import acknowledgement_of
from queuey.storage.cassandra.cluster import Driver, Rows, Statement, open_driver
from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget
from queuey.storage.cassandra.time.clock_watch import SELECT_NOW

__all__ = ["acknowledgement_of", "examine"]

CONNECT_TIMEOUT = 8.0

_SELECT_KEYSPACE = Statement("SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?")
_SELECT_GC_GRACE = Statement("SELECT table_name, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = ?")
_SELECT_READ_REPAIR = Statement("SELECT table_name, read_repair FROM system_schema.tables WHERE keyspace_name = ?")
_SELECT_VERSION = Statement("SELECT release_version FROM system.local")

Look = Callable[[], list[Finding]]


def examine(target: DataCentreTarget, options: CassandraOptions) -> list[Finding]:
    try:
        with open_driver(target, options, CONNECT_TIMEOUT, keyspace=False) as driver:
            return [*_check_cluster(driver, target, options), *_check_keyspace(driver, target, options)]
    except StoreUnavailable as error:
        advice = "Check the addresses in the setting store, the nodes, and the cassandra_ settings."
        return [Finding("nodes", "fail", str(error), advice)]


def _check_cluster(driver: Driver, target: DataCentreTarget, options: CassandraOptions) -> Iterator[Finding]:
    yield doctor_rules.judge_nodes(driver.hosts())
    yield doctor_rules.judge_access(target, options)
    yield from _run_guarded(driver, "version", lambda: [_check_versions(driver)])
    yield from _run_guarded(driver, "clocks", lambda: [_check_clocks(driver, target, options)])
    yield from _run_guarded(driver, "acknowledged", lambda: _check_settings(driver))


def _check_keyspace(driver: Driver, target: DataCentreTarget, options: CassandraOptions) -> Iterator[Finding]:
    make = f"queuey migrate --store {target.url}"
    if not driver.run(_SELECT_KEYSPACE, (target.keyspace,), consistency="ONE"):
        advice = f"Create it: {make} --replication COPIES"
        yield Finding("schema", "fail", f"keyspace {target.keyspace} does not exist", advice)
        return
    hosts = driver.hosts()
    copies = driver.replication()
    yield from doctor_rules.judge_replication(copies, hosts)
    yield from doctor_rules.judge_levels(options, copies)
    yield from _run_guarded(driver, "schema", lambda: [_check_schema(target, options, make)])
    yield from _run_guarded(driver, "gc_grace", lambda: [_check_grace(driver, target)])
    yield from _run_guarded(driver, "read_repair", lambda: [_check_read_repair(driver, target)])
    yield from _run_guarded(driver, "timing", lambda: [_check_timing(target, options)])


def _run_guarded(driver: Driver, check: str, look: Look) -> list[Finding]:
    try:
        return look()
    except StoreUnavailable as error:
        return [doctor_rules.judge_unanswered(check, str(error), driver.hosts())]


def _check_settings(driver: Driver) -> list[Finding]:
    nodes = node_settings.read_nodes(driver)
    return [doctor_rules.judge_sync(nodes), doctor_rules.judge_paxos(nodes)]


def _check_versions(driver: Driver) -> Finding:
    by_address: dict[str, str] = {}
    _ask_each(driver, _SELECT_VERSION, lambda address, rows: by_address.update({address: str(rows[0][0])}))
    return doctor_rules.judge_versions(by_address)


def _check_clocks(driver: Driver, target: DataCentreTarget, options: CassandraOptions) -> Finding:
    ahead: dict[str, float] = {}
    driver.run(
        SELECT_NOW, consistency="ONE"
    )  # Prepares the statement, so that each request below is a single exchange.
    began = time.time()

    def note(address: str, rows: Rows) -> None:
        theirs: UUID = rows[0][0]
        ahead[address] = (began + time.time()) / 2 - (theirs.time - EPOCH_TICKS) / TICKS_PER_SECOND

    _ask_each(driver, SELECT_NOW, note)
    return doctor_rules.judge_clocks(ahead, _read_clock_difference(driver, target, options))


def _read_clock_difference(driver: Driver, target: DataCentreTarget, options: CassandraOptions) -> float:
    """Returns the max clock difference in use (S): the keyspace's, or the setting if it has no keyspace that fits."""
    if driver.run(_SELECT_KEYSPACE, (target.keyspace,), consistency="ONE"):
        with suppress(SettingsError), open_driver(target, options, CONNECT_TIMEOUT) as inside:
            if migrations.schema_problem(inside) is None:
                return timing_changes.read_timing_status(inside, options).stored.kept.clock_difference
    return options.clock_difference


def _ask_each(driver: Driver, statement: Statement, note: Callable[[str, Rows], None]) -> None:
    failed = node_settings.ask_each(driver, statement, note)
    if failed:
        raise StoreUnavailable("; ".join(f"{address}: {reason}" for address, reason in sorted(failed.items())))


def _check_schema(target: DataCentreTarget, options: CassandraOptions, make: str) -> Finding:
    with open_driver(target, options, CONNECT_TIMEOUT) as driver:
        problem = migrations.schema_problem(driver)
        if problem is not None:
            return Finding("schema", "fail", problem, f"{make}, with the version of Queuey that will use it.")
        if not driver.await_schema_agreement():
            advice = "See nodetool describecluster; restart the nodes that differ."
            return Finding("schema", "fail", "the nodes disagree on the schema", advice)
    return Finding("schema", "ok", f"keyspace {target.keyspace} is up to date, and the nodes agree on it")


def _check_grace(driver: Driver, target: DataCentreTarget) -> Finding:
    tables = dict(driver.run(_SELECT_GC_GRACE, (target.keyspace,), consistency="ONE"))
    return doctor_rules.judge_grace(tables, max(node.hints for node in node_settings.read_nodes(driver)))


def _check_read_repair(driver: Driver, target: DataCentreTarget) -> Finding:
    return doctor_rules.judge_read_repair(dict(driver.run(_SELECT_READ_REPAIR, (target.keyspace,), consistency="ONE")))


def _check_timing(target: DataCentreTarget, options: CassandraOptions) -> Finding:
    with open_driver(target, options, CONNECT_TIMEOUT) as driver:
        if migrations.schema_problem(driver) is not None:
            return Finding("timing", "fail", "cannot be read until the schema is right", "See schema, above.")
        try:
            status = timing_changes.read_timing_status(driver, options)
        except SettingsError as error:
            return Finding("timing", "fail", str(error), "See `queuey timing`.")
        return doctor_rules.judge_timing(status.stored, status.measured)

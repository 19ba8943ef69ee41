"""Commands on a whole store: ``queuey doctor``, ``migrate``, ``timing``, ``backup`` and ``restore``.

``queuey doctor`` checks whether a store, as it is configured here, can keep its guarantees. The exit code is 1 if a
check failed, else 0; a warning is not a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from queuey.cli.operations.store_options import READY_TIMEOUT, ConfiguredStore, on_store, silence_logs
from queuey.model import time_parsing
from queuey.model.messages import Finding
from queuey.model.texts import format_count
from queuey.settings import Settings
from queuey.storage import bridge
from queuey.terminal import output, times
from queuey.terminal.output import DryRun, Yes, bar

if TYPE_CHECKING:
    from queuey.storage.cassandra.admin.migrations import Report
    from queuey.storage.cassandra.admin.timing_changes import TimingStatus
    from queuey.storage.cassandra.cluster import Driver
    from queuey.storage.cassandra.cluster.options import CassandraOptions
    from queuey.storage.cassandra.cluster.timing import KeyspaceTiming
    from queuey.storage.sqlite.backup import Contents, ReportProgress

Replication = Annotated[
    str | None,
    typer.Option(
        "--replication",
        help="Copies of a new keyspace: dc1=3,dc2=3 for each data centre, or 3 (SimpleStrategy).",
        metavar="COPIES",
        show_default="required if the keyspace does not exist",
    ),
]
CONNECT_TIMEOUT = 20.0
_MIB = 1 << 20
_CASSANDRA_BACKUP_HINT = (
    "is for SQLite stores. A Cassandra store is backed up on each node by nodetool: "
    "docs/operations-cassandra.md, section Backup and restore. "
    "queuey pipeline archive and replay copy the messages of queues, whatever the store."
)


@on_store
def doctor(store_at: ConfiguredStore) -> None:
    """Check the store's health, configuration and durability."""
    from queuey.app import opening

    silence_logs()
    findings = opening.make_examiner(store_at.settings)()
    # After a failed check, opening the store would only repeat the finding.
    if all(finding.state != "fail" for finding in findings):
        findings.append(_ping_store(store_at.settings))
    failed = any(finding.state == "fail" for finding in findings)
    document = {"store": store_at.settings.store, "ok": not failed, "findings": findings}
    output.show(document, _describe_findings(findings))
    if failed:
        raise typer.Exit(1)


def _ping_store(settings: Settings) -> Finding:
    from queuey.app import opening
    from queuey.model.errors import QueueyError
    from queuey.model.time_parsing import clock_warning

    try:
        store = opening.open_store(settings, jobs=False)
        try:
            opening.retry_until_available(lambda: bridge.run(store.ping()), READY_TIMEOUT)
            warning = clock_warning(bridge.run(store.ledger.ids_ahead()))
        finally:
            store.close()
    except QueueyError as error:
        return Finding("store", "fail", str(error), "The service's heartbeat is red for the same reason.")
    return Finding("store", "warn" if warning else "ok", "can be written and read", warning or "")


def _describe_findings(findings: list[Finding]) -> Iterator[str]:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        yield f"{finding.state:<4}  {finding.check:<{width}}  {finding.text}"
        if finding.advice:
            yield f"{'':<{width + 8}}{finding.advice}"


@on_store
def migrate(store_at: ConfiguredStore, replication: Replication = None, dry_run: DryRun = False) -> None:
    """Create the keyspace of a Cassandra store, or bring it up to date. Can be run at any time, also concurrently."""
    from queuey.app import opening

    settings = store_at.settings
    if not opening.is_cassandra(settings):
        text = "a SQLite store gets its tables when it is made; name a Cassandra store with --store"
        raise output.Failed(text, output.WRONG_USAGE)
    target = opening.cassandra_target(settings)
    from queuey.storage.cassandra.admin import migrations

    silence_logs()
    options = opening.cassandra_options(settings)
    report = migrations.migrate(target, options, replication=replication, dry_run=dry_run, tell=output.print_note)
    names = [migration.name for migration in report.migrations]
    done = f"{format_count(len(names), 'change')} applied" if names else "no changes were needed"
    about = {"keyspace": report.keyspace, "replication": report.replication, "migrations": names, "dry_run": dry_run}
    output.show(about, _describe_plan(report) if dry_run else f"Keyspace {report.keyspace} is up to date: {done}.")


def _describe_plan(report: Report) -> Iterator[str]:
    from queuey.storage.cassandra.admin import migrations

    if report.replication is not None:
        replication = migrations.describe_replication(report.replication)
        yield f"-- keyspace {report.keyspace} would be created with {replication}"
    for migration in report.migrations:
        yield f"-- {migration.name}"
        for statement in migration.statements:
            yield from f"{statement};".splitlines()
    if not report.migrations:
        yield f"-- keyspace {report.keyspace} is up to date"


@on_store
def timing(
    store_at: ConfiguredStore,
    write_deadline: Annotated[float | None, times.duration("W: deadline of a write to be acknowledged.")] = None,
    undo: Annotated[float | None, times.duration("U: max time to undo a failed write.")] = None,
    clock_difference: Annotated[float | None, times.duration("S: max difference between clocks.")] = None,
    delay: Annotated[
        float | None,
        times.duration("D: time that reads stay behind.", show_default="the minimum that the others allow"),
    ] = None,
    row_age: Annotated[
        float | None,
        times.duration(
            "C: max age of a queue's row in memory; changes of a queue answer after it.",
            show_default="the maximum that the others allow, at most 1",
        ),
    ] = None,
    level: Annotated[
        Literal["strong", "very_strong"] | None,
        typer.Option(help="Change only the times of this consistency level.", show_default="both"),
    ] = None,
    soon: Annotated[bool, typer.Option("--soon", help="For a new keyspace: W 0.4, U 0.35, S 0.25, D 1 s.")] = False,
    patient: Annotated[bool, typer.Option("--patient", help="For several data centres: W 3, U 1, S 1, D 5 s.")] = False,
) -> None:
    """Show or set the timing parameters of a Cassandra store."""
    from queuey.storage.cassandra.admin import timing_changes

    silence_logs()
    options = {
        "deadline": write_deadline,
        "undo": undo,
        "clock_difference": clock_difference,
        "delay": delay,
        "row_age": row_age,
    }
    named = {name: value for name, value in options.items() if value is not None}
    with _connect(store_at.settings) as (driver, store_options):
        status = timing_changes.read_timing_status(driver, store_options)
        if named or soon or patient:
            timing = _choose_timing(status, named, level, soon=soon, patient=patient)
            timing_changes.change_timing(driver, store_options, timing, output.print_note)
            status = timing_changes.read_timing_status(driver, store_options)
    stored = status.stored
    about = {"settled": stored.settled, "kept": stored.kept, "assumed": stored.assumed, "measured": status.measured}
    output.show(about | {"data_centres": status.centres}, _describe_timing(status))


@contextmanager
def _connect(settings: Settings) -> Iterator[tuple[Driver, CassandraOptions]]:
    from queuey.app import opening
    from queuey.model.errors import SettingsError

    if not opening.is_cassandra(settings):
        raise SettingsError("On SQLite, messages are readable at once; name a Cassandra store with --store.")
    target = opening.cassandra_target(settings)
    from queuey.storage.cassandra.cluster import open_driver

    options = opening.cassandra_options(settings)
    with open_driver(target, options, CONNECT_TIMEOUT) as driver:
        yield driver, options


def _choose_timing(
    status: TimingStatus, named: dict[str, float], level: str | None, *, soon: bool, patient: bool
) -> KeyspaceTiming:
    """Returns the timing to set. An unfinished change needs all three times, or a preset.

    The three are ``deadline``, ``undo`` and ``clock_difference``.

    Raises:
        SettingsError: The level is not known, a preset is combined with others, or a time is missing.
    """
    from queuey.model.errors import SettingsError
    from queuey.storage.cassandra.cluster.timing import MANY_CENTRES_TIMING, ONE_CENTRE_TIMING, change_values

    stored = status.stored
    if level is not None and level not in stored.kept.levels:
        raise SettingsError(f"--level {level} is not known: use one of {', '.join(stored.kept.levels)}.")
    if soon or patient:
        if named or level or (soon and patient):
            raise SettingsError("--soon and --patient set all times: give only one of them, and no other times.")
        return ONE_CENTRE_TIMING if soon else MANY_CENTRES_TIMING
    if not stored.settled and not {"deadline", "undo", "clock_difference"} <= named.keys():
        raise SettingsError(
            "A change of the times is in progress, or was interrupted. To finish it, or to start another, give all of "
            "--write-deadline, --undo and --clock-difference, or --soon or --patient."
        )
    levels = [level] if level else list(stored.kept.levels)
    return change_values(stored.kept, levels, named)


def _describe_timing(status: TimingStatus) -> Iterator[str]:
    from queuey.storage.cassandra.admin import doctor_rules
    from queuey.storage.cassandra.admin.timing_changes import describe_timing

    stored = status.stored
    if stored.settled:
        yield describe_timing(stored.kept)
    else:
        yield f"kept:    {describe_timing(stored.kept)}"
        yield f"assumed: {describe_timing(stored.assumed)}"
    finding = doctor_rules.judge_timing(stored, status.measured)
    yield finding.text
    if finding.advice:
        yield finding.advice


@on_store
def backup(
    store_at: ConfiguredStore,
    file: Annotated[Path, typer.Argument(help="File to write, if possible on another disk.", show_default=False)],
    yes: Yes = False,
) -> None:
    """Copy a SQLite store into one file while the service runs.

    The file appears when it is complete and checked, with its checksum in FILE.sha256. It has everything that was
    acknowledged before the command began.
    """
    from queuey.app import opening
    from queuey.storage.sqlite.backup import back_up

    settings = store_at.settings
    _require_sqlite(store_at, "queuey backup")
    if not opening.store_file_exists(settings):
        raise output.Failed(f"there is no store at {settings.data}; name its directory with --data")
    if file.is_dir() or not file.absolute().parent.is_dir() or (file.exists() and not file.is_file()):
        raise typer.BadParameter(f"{str(file)!r} is not a file in an existing directory", param_hint="FILE")
    if _is_of_store(file, settings.data):
        raise typer.BadParameter(f"{str(file)!r} is the store itself; name another file", param_hint="FILE")
    replace = file.exists()
    if replace:
        output.confirm(f"Replace {file}?", yes=yes)
    with _show_progress() as tell:
        contents = back_up(settings.data, file, opening.sqlite_options(settings, jobs=False), tell, replace=replace)
    _show_contents(contents, {"backup": str(file), "store": str(settings.data)}, f"{file} is a backup")


@on_store
def restore(
    store_at: ConfiguredStore,
    file: Annotated[Path, typer.Argument(help="Backup to restore.", show_default=False)],
    yes: Yes = False,
) -> None:
    """Restore the SQLite store of --data from a backup. The service must be stopped.

    Replaces an existing store, and loses all changes after the backup. If FILE.sha256 exists, the backup must have that
    checksum.
    """
    from queuey.app import opening
    from queuey.storage.sqlite import backup as backups

    settings = store_at.settings
    _require_sqlite(store_at, "queuey restore")
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {str(file)!r}", param_hint="FILE")
    if _is_of_store(file, settings.data):
        raise typer.BadParameter(f"{str(file)!r} is the store itself; name a backup", param_hint="FILE")
    replace = opening.store_file_exists(settings)
    if replace:
        output.confirm(f"Replace the store at {settings.data} and everything in it?", yes=yes)
    options = opening.sqlite_options(settings, jobs=False)
    with _show_progress() as tell:
        contents = backups.restore(file, settings.data, options, tell, replace=replace)
    about = {"backup": str(file), "store": str(settings.data), "replaced": replace}
    _show_contents(contents, about, f"The store at {settings.data} is restored from {file}")
    output.print_note(
        "Changes after the backup are lost. Revoke again the keys that were revoked since. Restart workers that "
        "claimed messages before."
    )


def _require_sqlite(store_at: ConfiguredStore, command: str) -> None:
    from queuey.app import opening

    if opening.is_cassandra(store_at.settings):
        raise output.Failed(f"{command} {_CASSANDRA_BACKUP_HINT}", output.WRONG_USAGE)


def _is_of_store(file: Path, data: Path) -> bool:
    from queuey.storage.sqlite.connection import file_of

    path, store = file.resolve(), file_of(data).resolve()
    return path.parent == store.parent and path.name.startswith(store.name)


@contextmanager
def _show_progress() -> Iterator[ReportProgress]:
    with bar() as move:

        def tell(text: str, done: int, total: int | None) -> None:
            move(f"{text} (MiB)", done // _MIB, None if total is None else -(-total // _MIB))

        yield tell


def _show_contents(contents: Contents, about: dict[str, Any], text: str) -> None:
    counts = [
        format_count(contents.applications, "application"),
        format_count(contents.keys, "key"),
        format_count(contents.queues, "queue"),
        format_count(contents.messages, "message"),
    ]
    until = "" if contents.newest is None else f", up to {time_parsing.format_instant(contents.newest)}"
    checked = "checked" if contents.sha256 else "checked, but without a checksum file"
    text += f": {', '.join(counts)}{until}; {contents.size / _MIB:,.1f} MiB, {checked}."
    output.show(about | msgspec.to_builtins(contents), text)

"""``queuey migrate``: prepares the keyspace of a Cassandra store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from queuey.cli.operations.store_options import ConfiguredStore, be_quiet, on_store
from queuey.terminal import output
from queuey.terminal.output import DryRun
from queuey.terminal.texts import plural

if TYPE_CHECKING:
    from queuey.storage.cassandra.admin.migrations import Report

Replication = Annotated[
    str | None,
    typer.Option(
        "--replication",
        help="Copies of a new keyspace: dc1=3,dc2=3 for each data centre, or 3 (SimpleStrategy).",
        metavar="COPIES",
        show_default="must be given if the keyspace is not there",
    ),
]


@on_store
def migrate(store_at: ConfiguredStore, replication: Replication = None, dry_run: DryRun = False) -> None:
    """Prepare the keyspace of a Cassandra store, or bring it up to date. May be run at any time, by several at once."""
    from queuey.storage import opening

    settings = store_at.settings
    if not opening.is_cassandra(settings):
        text = "a SQLite store brings itself up to date when it is opened; name a Cassandra one by --store"
        raise output.Failed(text, output.WRONG_USAGE)
    target = opening.cassandra_target(settings)
    from queuey.storage.cassandra.admin import migrations

    be_quiet()
    options = opening.cassandra_options(settings)
    report = migrations.migrate(target, options, replication=replication, dry_run=dry_run, tell=output.note)
    names = [migration.name for migration in report.migrations]
    done = f"{plural(len(names), 'change')} made" if names else "nothing had to be changed"
    found = {"keyspace": report.keyspace, "replication": report.replication, "migrations": names, "dry_run": dry_run}
    output.show(found, _plan(report) if dry_run else f"Keyspace {report.keyspace} is up to date: {done}.")


def _plan(report: Report) -> Iterator[str]:
    from queuey.storage.cassandra.admin import migrations

    if report.replication is not None:
        yield f"-- keyspace {report.keyspace} would be made with {migrations.shown(report.replication)}"
    for migration in report.migrations:
        yield f"-- {migration.name}"
        for statement in migration.statements:
            yield from f"{statement};".splitlines()
    if not report.migrations:
        yield f"-- keyspace {report.keyspace} is up to date"

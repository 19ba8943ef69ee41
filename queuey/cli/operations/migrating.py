"""``queuey migrate``: prepares the keyspace of a Cassandra store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from queuey.cli.operations.store_options import ConfiguredStore, be_quiet, on_store
from queuey.terminal import output
from queuey.terminal.output import DryRun, Json
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
def migrate(
    store_at: ConfiguredStore, replication: Replication = None, dry_run: DryRun = False, json: Json = False
) -> None:
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
    if json:
        names = [migration.name for migration in report.migrations]
        about = {"keyspace": report.keyspace, "replication": report.replication}
        output.emit({**about, "migrations": names, "dry_run": dry_run})
    elif dry_run:
        _show_plan(report)
    else:
        count = len(report.migrations)
        done = f"{plural(count, 'change')} made" if count else "nothing had to be changed"
        output.say(f"Keyspace {report.keyspace} is up to date: {done}.")


def _show_plan(report: Report) -> None:
    from queuey.storage.cassandra.admin import migrations

    if report.replication is not None:
        output.say(f"-- keyspace {report.keyspace} would be made with {migrations.shown(report.replication)}")
    for migration in report.migrations:
        output.say(f"-- {migration.name}")
        for statement in migration.statements:
            output.write(f"{statement};\n".encode())
    if not report.migrations:
        output.say(f"-- keyspace {report.keyspace} is up to date")

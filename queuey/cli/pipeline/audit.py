"""``queuey pipeline audit``: compares receipts of producers with the stored and the handled messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuey.cli.pipeline.running import PipelineRun, on_spark
from queuey.pipeline.options import AuditOptions
from queuey.terminal import output
from queuey.terminal.commands import name_and_value
from queuey.terminal.output import Block, Table, ToStderr
from queuey.terminal.struct_options import with_fields

if TYPE_CHECKING:
    from queuey.pipeline.audit.audit_job import Account, Audit

_FINDING_TITLES = {
    "missing": "missing",
    "twice": "twice in the archive",
    "copies": "duplicated",
    "differs": "not what was accepted",
}
_COUNT_FIELDS = ("accepted", "present", "archived", "missing", "expired", "ahead", "copies", "twice", "differs", "late")
_GROUP_COUNT_FIELDS = ("passed", "waiting", "expired")


@on_spark
@with_fields(AuditOptions)
def audit(
    run: PipelineRun,
    fields: dict[str, Any],
    renamed: Annotated[
        list[str] | None,
        typer.Option("--as", help="OLD=NEW: expect the messages of queue OLD in queue NEW, after a replay."),
    ] = None,
) -> None:
    """Compare receipts with the store, an archive, and the offsets of groups. Changes nothing.

    Exits with 1 if a message is missing, duplicated, or differs from what was accepted.
    """
    from queuey.pipeline.audit import audit_job as job

    names = dict(name_and_value(text, "OLD=NEW", "--as") for text in renamed or ())
    options = AuditOptions(store=run.store, names=names, **fields)
    run.report_dry_run()
    with run.session() as spark:
        report = job.run(spark, options, run.report)
    output.show(report, _describe(report))
    if not report.sound:
        raise typer.Exit(1)


def _describe(report: Audit) -> Iterator[Block]:
    from queuey.pipeline.audit.audit_job import AuditSample

    total = report.total
    names = [name for name in _COUNT_FIELDS if getattr(total, name) or name in {"accepted", "present", "missing"}]
    rows = [
        [queue, partition, *(f"{getattr(account, name):,}" for name in names), *_group_cells(total, account)]
        for queue, partitions in report.partitions.items()
        for partition, account in partitions.items()
        if any(getattr(account, name) for name in names)
    ]
    groups = [f"{group} {word}" for group in total.groups for word in _GROUP_COUNT_FIELDS]
    yield Table(["queue", "partition", *names, *groups], rows)
    yield ""
    if report.doubtful or total.maybe:
        stored = report.answered + total.found
        yield f"Sends without an answer: {report.doubtful + total.maybe:,}, of which stored: {stored:,}."
    strays = report.strays - report.answered - total.copies
    if strays > 0:
        yield f"Other messages without a receipt: {strays:,}."
    if report.foreign:
        yield f"Receipts of other applications, ignored: {report.foreign:,}."
    if report.broken:
        yield ToStderr(f"Lines that are not receipts: {report.broken:,}.")
    if report.samples:
        yield output.table(AuditSample, report.samples)
        yield ""
    problems = [f"{getattr(total, name):,} {text}" for name, text in _FINDING_TITLES.items() if getattr(total, name)]
    gone = f", {total.expired:,} expired" if total.expired else ""
    still = f", {total.ahead:,} not readable yet" if total.ahead else ""
    present = f"{total.present:,} of {total.accepted:,} messages are present"
    yield f"{present}{gone}{still}: {', '.join(problems) or 'all is well'}."


def _group_cells(total: Account, account: Account) -> Iterator[str]:
    for group in total.groups:
        stands = account.groups.get(group)
        yield from ("" if stands is None else f"{getattr(stands, word):,}" for word in _GROUP_COUNT_FIELDS)

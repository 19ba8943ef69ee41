"""``qdo deadletter``: lists dead letters, and sends them back to their queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from qdo.cli.opening import open_client
from qdo.cli.options import QUEUES, with_settings
from qdo.cli.settings import SERVICE, WorkSettings
from queuey.terminal import output, times
from queuey.terminal.commands import make_group
from queuey.terminal.deadletters import COLUMNS, make_filter, show, with_filter
from queuey.terminal.output import DryRun, Failed, is_json_chosen

if TYPE_CHECKING:
    from queuey.client import AsyncClient
    from queuey.client.deadletters import DeadLetterFilter

app = make_group()

_SETTINGS = (*SERVICE, *QUEUES, "dead_queue")


@app.command("list")
@with_settings(*_SETTINGS)
@with_filter
async def list_dead_letters(settings: WorkSettings, fields: dict[str, Any]) -> None:
    """List the dead letters of queues; with --json one per line, with its body."""
    selection = _make_filter(settings, fields)
    async with open_client(settings) as client:
        await _report_missing(client, selection)
        await _print_dead_letters(client, selection)


@app.command("redrive")
@with_settings(*_SETTINGS)
@with_filter
async def redrive(
    settings: WorkSettings,
    fields: dict[str, Any],
    ttl: Annotated[int | None, times.ttl("Time to live of the messages.", show_default="the queue's")] = None,
    dry_run: DryRun = False,
) -> None:
    """Send dead letters back to the end of their original partitions, and remove them.

    Each is sent once. If the command is interrupted, repeat it within a day.
    """
    from queuey.client import deadletters

    selection = _make_filter(settings, fields)
    async with open_client(settings) as client:
        await _report_missing(client, selection)
        if dry_run and not is_json_chosen():
            await _print_dead_letters(client, selection)
        done = await deadletters.redrive(client, selection, dry_run=dry_run, ttl=ttl)
    show(done, dry_run=dry_run)


def _make_filter(settings: WorkSettings, fields: dict[str, Any]) -> DeadLetterFilter:
    from qdo.cli.selection import make_subscription

    make_subscription(settings)  # Checks the names.
    queues = {"queues": settings.queue, "patterns": settings.pattern, "dead_queue": settings.worker.dead_queue}
    return make_filter(fields | queues)


async def _print_dead_letters(client: AsyncClient, selection: DeadLetterFilter) -> None:
    from queuey.client.deadletters import DeadLetter, dead_letters

    await output.show_each_async(DeadLetter, dead_letters(client, selection), *COLUMNS)


async def _report_missing(client: AsyncClient, selection: DeadLetterFilter) -> None:
    from msgspec.structs import replace

    from qdo.cli.selection import describe_hidden_queues, print_note_if_queues_are_unlisted, suggest_similar
    from qdo.partitions import subscribe
    from queuey.client.deadletters import dead_queues
    from queuey.client.lookup import find_queues

    if selection.patterns and not selection.dead_queue:
        await print_note_if_queues_are_unlisted(client, subscribe((), selection.patterns).literal_prefixes())
    lookup = await find_queues(client, [selection.dead_queue] if selection.dead_queue else selection.queues)
    if lookup.hidden and not selection.dead_queue:
        output.print_note(
            f"qdo: {describe_hidden_queues(lookup.hidden)}, so dead letters of claims in other queues are not found. "
            "Use --dead-queue."
        )
    for name in selection.queues:
        if not await dead_queues(client, replace(selection, queues=(name,), patterns=())):
            if (missing := selection.dead_queue or name) in lookup.absent:
                raise Failed(f"Queue {missing!r} does not exist{await suggest_similar(client, [missing])}")
            output.print_note(f"{name} has no dead letters: its dead-letter queue does not exist.")

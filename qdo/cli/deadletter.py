"""``qdo deadletter``: what handlers failed on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from qdo.cli import output
from qdo.cli.opening import open_client
from qdo.cli.options import QUEUES, with_settings
from qdo.cli.output import DryRun, Json
from qdo.cli.selection import moment, subscription
from qdo.cli.settings import SERVICE, WorkSettings
from qdo.errors import InvalidArgument

if TYPE_CHECKING:
    from qdo.deadletters import DeadLetter, Filter, Redriven
    from queuey.client import AsyncClient

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="List what handlers failed on, and send it back to where it came from.",
)

_PANEL = "Which dead letters"
Numbers = Annotated[
    list[int] | None,
    typer.Option("--partition", min=1, help="Only of this partition; several may be given.", rich_help_panel=_PANEL),
]
Since = Annotated[str | None, typer.Option(help="Given up at this instant or later.", rich_help_panel=_PANEL)]
Until = Annotated[str | None, typer.Option(help="Given up at this instant or before.", rich_help_panel=_PANEL)]
Error = Annotated[
    str | None, typer.Option(help="Class of the error: ValueError, requests.*; shell style.", rich_help_panel=_PANEL)
]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many of a queue.", rich_help_panel=_PANEL)]
_SOURCES = (*SERVICE, *QUEUES, "dead_queue")


@app.command("list")
@with_settings(*_SOURCES)
def list_dead_letters(
    settings: WorkSettings,
    partition: Numbers = None,
    since: Since = None,
    until: Until = None,
    error: Error = None,
    limit: Limit = None,
    json: Json = False,
) -> None:
    """List the dead letters of queues; with --json one a line, whole."""
    from qdo import deadletters

    wanted = _filter(settings, partition, since, until, error, limit)

    async def show() -> None:
        async with _queues(settings) as (client, names):
            rows = []
            for name in names:
                async for dead_letter in deadletters.dead_letters(client, name, **wanted):
                    if json:
                        output.emit(dead_letter)
                    else:
                        rows.append(_row(dead_letter))
            if not json:
                output.table(_COLUMNS, rows)

    asyncio.run(show())


@app.command("redrive")
@with_settings(*_SOURCES)
def redrive(
    settings: WorkSettings,
    partition: Numbers = None,
    since: Since = None,
    until: Until = None,
    error: Error = None,
    limit: Limit = None,
    ttl: Annotated[
        int | None, typer.Option(min=1, help="Seconds that they are to live.", show_default="the queue's")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Send dead letters back to the end of the partitions that they came from, and remove them.

    Each is sent before it is removed: interrupted in between, one may be sent twice.
    """
    from qdo import deadletters

    wanted = _filter(settings, partition, since, until, error, limit)

    async def send() -> list[tuple[str, Redriven]]:
        done = []
        async with _queues(settings) as (client, names):
            for name in names:
                if dry_run and not json:
                    dead_letters = deadletters.dead_letters(client, name, **wanted)
                    output.table(_COLUMNS, [_row(dead_letter) async for dead_letter in dead_letters])
                done.append((name, await deadletters.redrive(client, name, dry_run=dry_run, ttl=ttl, **wanted)))
        return done

    done = asyncio.run(send())
    for name, redriven in done:
        if json:
            left = [{"letter": dead_letter, "reason": reason} for dead_letter, reason in redriven.left]
            output.emit({"queue": name, "sent": redriven.sent, "left": left, "dry_run": dry_run})
            continue
        output.say(f"{name}: {redriven.sent} dead letters {'would be' if dry_run else 'were'} sent back")
        for dead_letter, reason in redriven.left:
            output.say(f"{name}: {dead_letter.partition}:{dead_letter.id} stays: {reason}")
    if any(redriven.left for _, redriven in done):
        raise typer.Exit(1)


_COLUMNS = ["queue", "partition", "id", "given up", "attempts", "error", "text"]


def _row(dead_letter: DeadLetter) -> tuple[object, ...]:
    cause = dead_letter.cause
    place = dead_letter.queue, dead_letter.partition, dead_letter.id
    return *place, output.instant(cause.at), cause.attempts, cause.error, cause.text


def _filter(
    settings: WorkSettings,
    partitions: list[int] | None,
    since: str | None,
    until: str | None,
    error: str | None,
    limit: int | None,
) -> Filter:
    now = time.time()
    return {
        "partitions": partitions or None,
        "since": None if since is None else moment(since, now),
        "until": None if until is None else moment(until, now),
        "error": error,
        "limit": limit,
        "dead_queue": settings.dead_queue,
    }


@asynccontextmanager
async def _queues(settings: WorkSettings) -> AsyncIterator[tuple[AsyncClient, list[str]]]:
    """Opens a client and finds the queues that are meant and have dead letters.

    Raises:
        InvalidArgument: None is named.
    """
    from qdo.consumer.rebalance.queue_discovery import discover
    from qdo.deadletters import holds_dead

    wanted = subscription(settings)
    if wanted is None:
        raise InvalidArgument("name the queue that the dead letters came from: --queue or --pattern")
    async with open_client(settings) as client:
        names = set(settings.queue)
        if settings.pattern:
            names |= {name for name in await discover(client, wanted) if not holds_dead(name, settings.dead_queue)}
        yield client, [name for name in sorted(names) if await _has(client, name, settings)]


async def _has(client: AsyncClient, name: str, settings: WorkSettings) -> bool:
    """Tells whether a queue ever had dead letters."""
    from qdo.deadletters import queue_for
    from queuey.client import QueueNotFound

    try:
        await client.info(queue_for(name, settings.dead_queue))
    except QueueNotFound:
        if name in settings.queue:
            output.note(f"{name} has no dead letters, and never had.")
        return False
    return True

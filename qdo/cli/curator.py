"""``qdo curator``: moves messages between Apache Curator's queues in ZooKeeper and Queuey."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from qdo.cli.opening import open_client
from qdo.cli.options import COORDINATION, with_settings
from qdo.cli.settings import SERVICE, WorkSettings
from qdo.errors import InvalidArgument
from qdo.partitions import subscribe
from queuey.model.time_parsing import format_instant
from queuey.terminal import output, times
from queuey.terminal.commands import make_group
from queuey.terminal.output import Block, DryRun, ToStderr, bar

if TYPE_CHECKING:
    from qdo.curator.drain import DrainTarget, Left
    from qdo.curator.place import PeekedItem, QueuePlace
    from queuey.client import AsyncClient

app = make_group()

Path = Annotated[str, typer.Argument(help="Path of the Curator queue: /apps/orders.", show_default=False)]
QueueName = Annotated[str, typer.Argument(help="Queue of Queuey.", show_default=False)]
Recipe = Annotated[
    Literal["queue", "priority", "delay", "id", "simple"],
    typer.Option(metavar="NAME", help="Recipe of the Curator queue: queue, priority, delay, id or simple."),
]
LockPath = Annotated[str | None, typer.Option(help="The lock path of the queue's consumers.", show_default="no locks")]
Limit = Annotated[int | None, typer.Option(min=1, help="Max number to move.", show_default="all")]
NodeLimit = Annotated[
    int, typer.Option(min=10_000, help="Max bytes of a transaction: the servers' jute.maxbuffer less 5 percent.")
]


@app.command("drain")
@with_settings(*SERVICE, *COORDINATION)
async def drain(
    settings: WorkSettings,
    path: Path,
    queue: QueueName,
    recipe: Recipe = "queue",
    lock_path: LockPath = None,
    limit: Limit = None,
    ttl: Annotated[int | None, times.ttl("Time to live of the messages.", show_default="the queue's")] = None,
    partition: Annotated[
        int | None, typer.Option(min=1, help="Partition for all messages, in order.", show_default="any")
    ] = None,
    node_limit: NodeLimit = 1_000_000,
    dry_run: DryRun = False,
) -> None:
    """Move the messages of a Curator queue to a queue of Queuey.

    If it was interrupted or killed, run it again: it continues, and moves every message once.
    """
    from qdo.curator.drain import Drain, DrainPlan

    async with _open_place_and_client(settings, path) as (place, client):
        plan = DrainPlan(
            target=await _make_target(client, queue),
            recipe=recipe,
            lock_path=None if lock_path is None else _in_chroot(place, lock_path),
            limit=limit,
            ttl=ttl,
            partition=partition,
            node_limit=node_limit,
            dry_run=dry_run,
        )
        with bar() as move_bar:
            result = await Drain(place, client, plan, report_progress=partial(move_bar, f"{path} to {queue}")).run()
    verb = "Would move" if dry_run else "Moved"
    text = [f"{verb} {result.items} items with {result.messages} messages from {path} to {queue}."]
    if result.held:
        text.append(ToStderr(f"{result.held} items were not moved because consumers lock them. Run it again."))
    output.show(result, [*text, *_describe_left(result.left, result.samples, "item")])
    if result.held or result.left:
        raise typer.Exit(1)


@app.command("fill")
@with_settings(*SERVICE, *COORDINATION)
async def fill(
    settings: WorkSettings,
    queue: QueueName,
    path: Path,
    recipe: Recipe = "queue",
    priority: Annotated[int, typer.Option(help="Priority of messages without the header curator-priority.")] = 0,
    limit: Limit = None,
    node_limit: NodeLimit = 1_000_000,
    dry_run: DryRun = False,
) -> None:
    """Move the unacknowledged messages of a queue of Queuey to a Curator queue.

    If it was interrupted or killed, run it again: it continues, and moves every message once. Messages whose claims
    expire meanwhile may also reach another worker.
    """
    from qdo.curator.fill import Fill, FillPlan
    from qdo.curator.nodes import PRIORITY

    PRIORITY.prefix(priority)
    async with _open_place_and_client(settings, path) as (place, client):
        plan = FillPlan(
            source=await _make_target(client, queue),
            recipe=recipe,
            priority=priority,
            limit=limit,
            node_limit=node_limit,
            dry_run=dry_run,
        )
        with bar() as move_bar:
            result = await Fill(place, client, plan, report_progress=partial(move_bar, f"{queue} to {path}")).run()
    verb = "Would move" if dry_run else "Moved"
    text = [f"{verb} {result.messages} messages from {queue} to {path}."]
    if result.twice:
        twice = f"{result.twice} messages were also delivered to another worker, because their claims expired."
        text.append(ToStderr(twice))
    if result.remaining:
        text.append(
            ToStderr(f"{result.remaining} messages stay in {queue}: claimed by others, not due yet, or not movable.")
        )
    output.show(result, [*text, *_describe_left(result.left, result.samples, "message")])
    if result.twice or result.left:
        raise typer.Exit(1)


@app.command("peek")
@with_settings(*COORDINATION)
async def peek(
    settings: WorkSettings,
    path: Path,
    recipe: Recipe = "queue",
    lock_path: LockPath = None,
    limit: Annotated[int, typer.Option(min=0, max=10_000, help="Max items to show.")] = 10,
) -> None:
    """Show the first items of a Curator queue without removing them. It does not need the service."""
    from qdo.curator.place import PeekedItem, peek

    async with _open_place(settings, path) as place:
        lock = None if lock_path is None else _in_chroot(place, lock_path)
        content = await peek(place, recipe, limit=limit, lock_path=lock)
    item = output.table(
        PeekedItem, content.first, ("node", lambda item: item.name), ("is", _describe), "bytes", _MESSAGES
    )
    text: list[Block] = [item, f"{content.path} has {content.items} items and {content.others} other nodes."]
    if content.staged:
        staged = f"A drain was interrupted, and {content.staged} batches are not posted yet. Run the drain again."
        text.append(ToStderr(staged))
    output.show(content, text)


def _describe(item: PeekedItem) -> str:
    properties = [f"priority {item.priority}"] if item.priority is not None else []
    properties += [f"due {format_instant(item.due)}"] if item.due else []
    properties += [f"id {item.id}"] if item.id is not None else []
    properties += ["locked"] if item.locked else []
    return ", ".join(properties)


def _format_messages(item: PeekedItem) -> str:
    more = item.count - len(item.messages)
    return item.error or " | ".join([*item.messages, f"and {more:,} more"] if more else item.messages)


_MESSAGES = ("messages", _format_messages)


def _describe_left(count: int, samples: list[Left], what: str) -> Iterator[ToStderr]:
    for sample in samples:
        yield ToStderr(f"{what.capitalize()} {sample.name} stays: it {sample.reason}")
    if count > len(samples):
        yield ToStderr(f"{count - len(samples)} more stay.")


def _in_chroot(place: QueuePlace, path: str) -> str:
    from qdo.group.zookeeper.connection_options import check_node_path

    return place.path.removesuffix(place.shown) + check_node_path("lock_path", path)


async def _make_target(client: AsyncClient, queue: str) -> DrainTarget:
    from qdo.curator.drain import DrainTarget
    from qdo.group.discovery import read_store_id

    subscribe([queue], ())  # Checks the name.
    return DrainTarget(await read_store_id(client), client.application, queue)


@asynccontextmanager
async def _open_place(settings: WorkSettings, path: str) -> AsyncIterator[QueuePlace]:
    if settings.coordination is None or not settings.coordination.startswith("zookeeper:"):
        coordination = "none" if settings.coordination is None else repr(settings.coordination)
        raise InvalidArgument(
            f"Curator's queues are in ZooKeeper, but the coordination is {coordination}. "
            "Name the servers: --coordination zookeeper://host1,host2:2181"
        )
    from qdo.group.opening import need_zookeeper

    need_zookeeper()  # before the import, which would raise another error
    from qdo.curator.place import open_place

    async with open_place(settings.coordination, path, session_timeout=settings.session_timeout) as place:
        yield place


@asynccontextmanager
async def _open_place_and_client(settings: WorkSettings, path: str) -> AsyncIterator[tuple[QueuePlace, AsyncClient]]:
    async with _open_place(settings, path) as place, open_client(settings) as client:
        yield place, client

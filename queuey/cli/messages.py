"""``queuey get``, ``delete``, ``peek`` and ``size``: messages by id or name, and what is not acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from queuey.cli.reading import Raw, show
from queuey.cli.service_options import Queue, on_existing
from queuey.terminal import output
from queuey.terminal.texts import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuey.client import Client, Message

Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Messages: their ids, in any partition, or partition:id.", show_default=False),
]
Name = Annotated[str | None, typer.Option(help="The message that has this name, in place of ids.")]


@on_existing
def get(client: Client, queue: Queue, ids: Ids = None, name: Name = None, raw: Raw = False) -> None:
    """Print messages by id, or the one that has a name; with --json one a line. There is no read delay.

    Ends with 1 if one of them is not there.
    """
    _require_one(ids, name, f"To read the queue: queuey read {queue}")
    if name is None:
        found = client.get(queue, _places(client, queue, ids or []))
        show(found, raw=raw)
        _require_found(queue, found, ids or [])
    elif (message := client.named(queue).get(name)) is not None:
        show([message], raw=raw)
    else:
        raise output.Failed(f"Queue {queue!r} has no message named {name!r}.")


@on_existing
def delete(client: Client, queue: Queue, ids: Ids = None, name: Name = None) -> None:
    """Delete messages by id, or the one that has a name."""
    _require_one(ids, name, f"To delete the queue: queuey queue delete {queue}")
    if name is not None:
        client.named(queue).delete(name)
        output.show({"name": name}, f"No message has the name {name} now.")
        return
    spelled_alike = dict.fromkeys(each.replace("-", "").lower() for each in ids or [])
    places = [each for each in spelled_alike if ":" in each]
    if alone := [each for each in spelled_alike if ":" not in each]:
        found = client.get(queue, _places(client, queue, alone))
        _require_found(queue, found, alone)
        places += [f"{message.partition}:{message.id}" for message in found]
        if len(found) > len(alone):
            text = f"an id stands for several messages. Name those to delete: {' '.join(sorted(places))}"
            raise typer.BadParameter(text, param_hint="ids")
    places = list(dict.fromkeys(places))
    client.delete(queue, places)
    output.show({"deleted": places}, f"{plural(len(places), 'message')} deleted.")


@on_existing
def peek(
    client: Client,
    queue: Queue,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many messages.")] = 10,
    raw: Raw = False,
) -> None:
    """Print the oldest messages that are not acknowledged, claimed or not; with --json one a line. Claims nothing."""
    show(client.job_queue(queue).peek(limit), raw=raw)


@on_existing
def size(client: Client, queue: Queue) -> None:
    """Print how many messages are not acknowledged."""
    found = client.job_queue(queue).size()
    output.show(found, f"{'' if found.exact else 'about '}{found.size}")


def _require_one(ids: list[str] | None, name: str | None, otherwise: str) -> None:
    if bool(ids) == (name is not None):
        raise typer.BadParameter(f"give either ids or --name. {otherwise}", param_hint="ids")


def _places(client: Client, queue: str, ids: Iterable[str]) -> list[str]:
    """Returns where the messages may lie: an id alone may be in any partition."""
    given = list(dict.fromkeys(ids))
    alone = any(":" not in each for each in given)
    numbers = range(1, client.info(queue).partitions + 1) if alone else ()
    return [place for each in given for place in ([each] if ":" in each else [f"{n}:{each}" for n in numbers])]


def _require_found(queue: str, found: list[Message], wanted: list[str]) -> None:
    """Ends the command if a message is not there.

    Raises:
        Failed: Names them.
    """
    there = {text for message in found for text in (message.id, f"{message.partition}:{message.id}")}
    if missing := [each for each in wanted if each.replace("-", "").lower() not in there]:
        reason = f"was deleted, has expired, or never was. Ask: queuey explain {queue} ID"
        raise output.Failed(f"Queue {queue!r} has no message {', '.join(missing)}: it {reason}")

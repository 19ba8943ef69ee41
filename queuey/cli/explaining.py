"""``queuey explain``: why a message is not read or claimed, and what readers of a queue see now."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from queuey.api.queues import PartitionExplanation
from queuey.cli.service_options import Queue, connected
from queuey.model import ids, time_parsing
from queuey.terminal import output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from queuey.client import Client, Explanation, Offsets
    from queuey.client.deadletters import DeadLetter

MAX_GROUPS = 20
"""Max consumer groups whose progress is shown; the others are left out."""

Id = Annotated[
    str | None,
    typer.Argument(help="Message: its id, in any partition, or partition:id.", show_default="explain the queue"),
]


@connected
def explain(client: Client, queue: Queue, id: Id = None) -> None:  # noqa: A002 - the argument's name
    """Explain why a message is not read or claimed; without an id, explain what readers of a queue see now."""
    if id is None:
        _explain_queue(client, queue)
    else:
        _explain_message(client, queue, id)


def _explain_message(client: Client, queue: str, identifier: str) -> None:
    explanation = client.explain(queue, identifier)
    letter = _find_dead_letter(client, queue, identifier, explanation)
    progress = _read_group_progress(client, queue, explanation)
    place = None if letter is None else {"queue": letter.lies_in, "partition": letter.partition}
    text = _describe_message(explanation, letter, progress)
    output.show(msgspec.to_builtins(explanation) | {"dead_letter": place, "groups": progress}, text)


def _describe_message(explanation: Explanation, letter: DeadLetter | None, progress: dict[str, bool]) -> Iterator[str]:
    state = (
        ("stored, and readable" if explanation.readable else "stored, not readable yet")
        if explanation.stored
        else "not stored"
    )
    yield (f"Message {explanation.id} of {time_parsing.format_instant(float(explanation.timestamp))}: {state}.")
    several = len({reason.partition for reason in explanation.reasons if reason.partition is not None}) > 1
    for reason in explanation.reasons:
        where = f"Partition {reason.partition}: " if several and reason.partition is not None else ""
        yield f"  {where}{reason.text}"
    for name, handled in progress.items():
        yield f"  Group {name} {'has handled it' if handled else 'has not reached it yet'}."
    if letter is not None:
        cause = letter.cause
        yield (f"  It is a dead letter in queue {letter.lies_in}: attempts {cause.attempts}, error {cause.error}.")


def _find_dead_letter(client: Client, queue: str, identifier: str, explanation: Explanation) -> DeadLetter | None:
    from queuey.client import NotAllowed, NotFound
    from queuey.client.deadletters import queue_for, read_dead_letter

    info, dead = client.info(queue), queue_for(queue)
    partition, colon, _ = identifier.rpartition(":")
    numbers = [int(partition)] if colon else range(1, info.partitions + 1)
    places = [(number, explanation.id) for number in numbers]
    with suppress(NotAllowed, NotFound):
        for message in client.get(dead, places):
            letter = read_dead_letter(message, dead)
            if letter is not None and letter.queue == queue:
                return letter
    return None


def _read_group_progress(client: Client, queue: str, explanation: Explanation) -> dict[str, bool]:
    numbers = {reason.partition for reason in explanation.reasons if reason.code == "expires" and reason.partition}
    position = ids.parse_position(explanation.id)
    progress = {}
    for group in _read_offsets(client, queue, client.groups(queue)) if numbers else []:
        offsets = [group.partitions[number].offset for number in numbers]
        progress[group.group] = all(offset is not None and ids.parse_position(offset) >= position for offset in offsets)
    return progress


def _read_offsets(client: Client, queue: str, names: Sequence[str]) -> list[Offsets]:
    from queuey.client import GroupNotFound

    offsets = []
    for name in names[:MAX_GROUPS]:
        with suppress(GroupNotFound):
            offsets.append(client.offsets(queue, name))
    return offsets


def _explain_queue(client: Client, queue: str) -> None:
    explanation = client.explain_queue(queue)
    claims = () if explanation.claims is None else ("claimed", "retrying", "waiting")
    columns = ("count", "oldest", "newest", "shown", *claims)
    partitions = output.table(PartitionExplanation, explanation.partitions, *columns, key="partition")
    output.show(explanation, [*explanation.sentences, "", partitions])

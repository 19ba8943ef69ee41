"""``queuey explain``: why a message is not read or claimed, and what readers of a queue see now."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from queuey import ids, time_parsing
from queuey.api.claims import backlog_text
from queuey.cli.service_options import Queue, connected
from queuey.terminal import output
from queuey.terminal.output import Block
from queuey.terminal.texts import plural
from queuey.titles import estimated, id_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from queuey.client import Backlog, ClaimCounts, Client, Explanation, Offsets, QueueInfo
    from queuey.client.deadletters import DeadLetter

MAX_GROUPS = 20
"""Max consumer groups whose lag is shown."""

Id = Annotated[
    str | None,
    typer.Argument(help="A message: its id, in any partition, or partition:id.", show_default="explain the queue"),
]


@connected
def explain(client: Client, queue: Queue, id: Id = None) -> None:  # noqa: A002 - the argument's name
    """Say why a message is not read or claimed, yet or any more; without an id what readers of a queue see now."""
    if id is None:
        _explain_queue(client, queue)
    else:
        _explain_message(client, queue, id)


# One message


def _explain_message(client: Client, queue: str, identifier: str) -> None:
    found = client.explain(queue, identifier)
    letter = _dead_letter(client, queue, identifier, found)
    passed = _passed(client, queue, found)
    place = None if letter is None else {"queue": letter.lies_in, "partition": letter.partition}
    text = _sentences_of_message(found, letter, passed)
    output.show(msgspec.to_builtins(found) | {"dead_letter": place, "groups": passed}, text)


def _sentences_of_message(found: Explanation, letter: DeadLetter | None, passed: dict[str, bool]) -> Iterator[str]:
    state = ("stored, and readable" if found.readable else "stored, not readable yet") if found.stored else "not stored"
    yield (f"Message {found.id} of {time_parsing.iso(float(found.timestamp))}: {state}.")
    several = len({reason.partition for reason in found.reasons if reason.partition is not None}) > 1
    for reason in found.reasons:
        where = f"Partition {reason.partition}: " if several and reason.partition is not None else ""
        yield f"  {where}{reason.text}"
    for name, handled in passed.items():
        yield f"  Group {name} {'has handled it' if handled else 'has not come to it yet'}."
    if letter is not None:
        cause = letter.cause
        yield (f"  It lies in queue {letter.lies_in} as a dead letter: attempts {cause.attempts}, error {cause.error}.")


def _dead_letter(client: Client, queue: str, identifier: str, found: Explanation) -> DeadLetter | None:
    """Looks the message up among the dead letters that the caller may read; a dead letter keeps its id."""
    from queuey.client import NotAllowed, NotFound
    from queuey.client.deadletters import queue_for, read_dead_letter

    info, dead = client.info(queue), queue_for(queue)
    given, colon, _ = identifier.rpartition(":")
    numbers = [int(given)] if colon else range(1, info.partitions + 1)
    places = [(number, found.id) for number in numbers]
    with suppress(NotAllowed, NotFound):
        for message in client.get(dead, places):
            letter = read_dead_letter(message, dead)
            if letter is not None and letter.queue == queue:
                return letter
    return None


def _passed(client: Client, queue: str, found: Explanation) -> dict[str, bool]:
    """Compares the message with the offsets that consumer groups have recorded."""
    numbers = {reason.partition for reason in found.reasons if reason.code == "expires" and reason.partition}
    place = ids.parse_position(found.id)
    passed = {}
    for group in _groups(client, queue, client.groups(queue)) if numbers else []:
        offsets = [group.partitions[number].offset for number in numbers]
        passed[group.group] = all(each is not None and ids.parse_position(each) >= place for each in offsets)
    return passed


def _groups(client: Client, queue: str, names: Sequence[str]) -> list[Offsets]:
    from queuey.client import GroupNotFound

    found = []
    for name in names[:MAX_GROUPS]:
        with suppress(GroupNotFound):
            found.append(client.offsets(queue, name))
    return found


# A queue


class _Seen(NamedTuple):
    """Findings about a queue. ``refused``: why its messages cannot be claimed."""

    info: QueueInfo
    claims: ClaimCounts | None
    backlog: Backlog | None
    refused: str | None
    groups: list[Offsets]
    left_out: int


def _look(client: Client, queue: str) -> _Seen:
    from queuey.client import Conflict

    info = client.info(queue)
    claims, backlog, refused = None, None, None
    try:
        claims, backlog = client.job_queue(queue).counts(), client.job_queue(queue).backlog()
    except Conflict as error:
        refused = str(error)
    names = client.groups(queue)
    return _Seen(info, claims, backlog, refused, _groups(client, queue, names), max(0, len(names) - MAX_GROUPS))


def _explain_queue(client: Client, queue: str) -> None:
    seen = _look(client, queue)
    found = {
        "queue": seen.info,
        "claims": seen.claims,
        "backlog": seen.backlog,
        "claims_refused": seen.refused,
        "groups": seen.groups,
    }
    output.show(found, _described(seen))


def _described(seen: _Seen) -> Iterator[Block]:
    info = seen.info
    yield from _sentences(seen)
    yield ""
    claims = {} if seen.claims is None else seen.claims.partitions
    yield output.Table(
        [
            "partition",
            "messages",
            "oldest",
            "newest",
            "reads show",
            *(["claimed", "to deliver again"] if claims else []),
        ],
        (
            [
                number,
                estimated()(part.count, part),
                part.oldest and id_time(part.oldest),
                part.newest and id_time(part.newest),
                _shown(info, part.oldest, part.newest),
                *([claims[number].claimed, claims[number].waiting] if number in claims else []),
            ]
            for number, part in sorted(info.partition_info.items())
        ),
    )


_KINDS = {
    "dedup": "Of messages with equal bodies that wait to be claimed one is delivered.",
    "ordered": "Messages of one key are claimed one after another.",
}


def _sentences(seen: _Seen) -> list[str]:
    info = seen.info
    found = [
        f"Queue {info.name} of {info.application}: {plural(info.partitions, 'partition')}, {info.type}.",
        f"Consistency {info.consistency}, store {info.store}, created {time_parsing.iso(info.created)}.",
        f"Messages live {time_parsing.length(info.ttl)}, unless one has a TTL of its own.",
    ]
    if info.read_delay:
        found.append(
            f"Range reads stay {time_parsing.length(info.read_delay)} behind the clock: "
            f"they show what is older than {id_time(info.horizon)}."
        )
    else:
        found.append("Range reads show a message as soon as it is stored, or due.")
    if info.principals:
        found.append(f"Only these may read it, delete in it or claim from it: {', '.join(info.principals)}.")
    if seen.refused is not None:
        found.append(f"It cannot be claimed from: {seen.refused}")
    elif info.max_deliveries:
        dead = f"After {plural(info.max_deliveries, 'delivery', 'deliveries')} without an acknowledgement"
        found.append(f"{dead} a message becomes a dead letter in {info.dead_letter}.")
    if seen.backlog is not None:
        found.append(f"For claims: {backlog_text(seen.backlog, time.time())}.")
    if info.on_ack == "delete":
        found.append("Acknowledged messages are deleted.")
    if info.kind in _KINDS:
        found.append(_KINDS[info.kind])
    found += _limits(info)
    for group in seen.groups:
        found.append(f"Group {group.group} has {plural(group.lag, 'message')} left.")
    found += _clock(info)
    if seen.left_out:
        found.append(f"{plural(seen.left_out, 'more group')} not shown: queuey offsets show {info.name}")
    return found


def _clock(info: QueueInfo) -> Iterator[str]:
    if (
        warning := time_parsing.clock_warning(ids.ticks_to_seconds(ids.parse_position(info.horizon)[0]) - time.time())
    ) is not None:
        yield warning


def _limits(info: QueueInfo) -> Iterator[str]:
    if info.max_claimed:
        yield f"At most {info.max_claimed} are claimed at once, divided among the partitions."
    if info.max_claimed_per_key:
        yield f"At most {info.max_claimed_per_key} of one key are claimed at once."


def _shown(info: QueueInfo, oldest: str | None, newest: str | None) -> str:
    """Describes how much of a partition range is readable now."""
    if oldest is None or newest is None:
        return "nothing: it is empty"
    horizon, last = ids.parse_position(info.horizon)[0], ids.parse_position(newest)[0]
    if last < horizon:
        return "all"
    at = time_parsing.iso(ids.ticks_to_seconds(last) + info.read_delay)
    return f"{'nothing' if ids.parse_position(oldest)[0] >= horizon else 'a part'}, all from {at} on"

"""Acts on queues: options, moves and offsets of groups."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec

from queuey.api.progress import GroupOffset
from queuey.console.acts.act import Act, ActPlan, ActResult, Field
from queuey.console.sessions import PageRequest
from queuey.messages.ranges import parse_mark
from queuey.model import ids
from queuey.model.errors import InvalidRequest, MoveNotFound, OffsetConflict
from queuey.model.ids import Position
from queuey.model.messages import RESETTABLE, OffsetChange, Queue, QueueSpec, option_metas
from queuey.model.rights import format_principal
from queuey.model.time_parsing import parse_point
from queuey.queues.views import read_spec
from queuey.web import validators
from queuey.web.validators import Errors

CHANGEABLE_OPTIONS = tuple(name for name, option in option_metas().items() if (option.extra or {})["changes"])

NO_OFFSET = "none"


class ChangeOptions(Act):
    """Changes the options that were edited; a blank one gets its default, or is refused if it cannot be reset.

    Changes nothing if no option was edited, or if somebody else has changed an edited one since the form was shown. For
    a new dead-letter queue the caller needs a right to send to it or to administer it.
    """

    name, title, needs = "options", "Change the options", ("admin",)
    place = "acts"
    fields = (*CHANGEABLE_OPTIONS, "principals", "seen")

    async def inputs(self, page_request: PageRequest) -> tuple[Field, ...]:
        now = _option_texts((await page_request.enter("admin")).queue)
        fields = [
            Field(
                name,
                (option.title or name).capitalize(),
                now[name],
                "choice" if (words := (option.extra_json_schema or {}).get("enum")) else "line",
                hint="" if words else f"{option.description} Blank: the default.",
                choices=tuple((word, word) for word in words or ()),
            )
            for name, option in option_metas().items()
            if name in now
        ]
        principals = Field("principals", "Principals", now["principals"], hint="Separated by commas: app:shop=read")
        return (*fields, principals)

    async def plan(self, page_request: PageRequest) -> ActPlan:
        now = _option_texts((await page_request.enter("admin")).queue)
        return ActPlan(
            about="Only the fields that you edit are changed. The number of partitions cannot be reduced.",
            hidden={"seen": msgspec.json.encode(now).decode()},
            button="Change the options",
        )

    async def do(self, page_request: PageRequest) -> ActResult:
        access = await page_request.enter("admin")
        now = _option_texts(access.queue)
        seen = _read_seen(page_request, now)
        changed: dict[str, Any] = {name: text for name in now if (text := page_request.get(name)) != seen[name]}
        errors = Errors()
        for name, text in changed.items():
            if now[name] != seen[name]:
                errors[name] = f"Somebody has changed it meanwhile, to {now[name] or 'the default'}"
            elif not text and name not in RESETTABLE:
                errors[name] = "Missing"
        errors.check()
        if not changed:
            return ActResult(text="No field was edited, so nothing was changed.")
        spec = read_spec({name: text for name, text in changed.items() if text}, errors, page_request.service.limits)
        errors.check()
        access = await page_request.enter("admin", dead_letter=spec.dead_letter)
        queue = await page_request.service.queues.update(
            access, spec, [name for name, text in changed.items() if not text]
        )
        after = _option_texts(queue)
        parts = (
            f"{name} from {now[name] or 'the default'} to {after[name] or 'the default'}" for name in sorted(changed)
        )
        return ActResult(text=f"Changed {', '.join(parts)}.")


def _read_seen(page_request: PageRequest, names: Iterable[str]) -> dict[str, str]:
    try:
        seen = msgspec.json.decode(page_request.given.get("seen", ""), type=dict[str, str])
        return {name: seen[name] for name in names}
    except (msgspec.DecodeError, KeyError):
        raise InvalidRequest({"seen": "The form lacks the former values. Open the page again"}) from None


def _option_texts(queue: Queue) -> dict[str, str]:
    values = {name: getattr(queue, name) for name in CHANGEABLE_OPTIONS}
    delays = msgspec.structs.asdict(queue.backoff) if queue.backoff else {}
    return {
        **{name: _format_value(value, blank=not value and name != "read_delay") for name, value in values.items()},
        "backoff": ",".join(f"{name}={value:g}" for name, value in delays.items()),
        "principals": ",".join(map(format_principal, queue.principals)),
    }


def _format_value(value: object, *, blank: bool) -> str:
    if value is None or blank:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


class MoveMessages(Act):
    """Begins a move to another queue. Besides ``needs``, the caller needs the right ``send`` to that queue."""

    name, title, needs = "move", "Move the messages", ("read", "delete")
    place = "acts"
    fields = logged_fields = ("to",)
    about = (
        "All present messages, except those claimed by a worker, are moved to another queue of the application. The "
        "move continues when the page is closed; the page of the queue shows its progress and can cancel it."
    )
    button = "Move them"

    async def inputs(self, page_request: PageRequest) -> tuple[Field, ...]:
        return (Field("to", "To the queue"),)

    async def do(self, page_request: PageRequest) -> ActResult:
        target = page_request.get("to")
        if not target:
            raise InvalidRequest({"to": "Missing"})
        await page_request.enter("read")
        report = await page_request.service.moves.begin(
            await page_request.enter("delete"), await page_request.enter("send", target)
        )
        return ActResult(text=f"Move {report.id} from {report.source} to {report.target} is {report.state}.")


class CancelMove(Act):
    """Requests the end of a move from this queue; moves from other queues are not found."""

    name, title, needs = "cancel-move", "Cancel a move", ("delete",)
    fields = logged_fields = ("move",)
    button = "Cancel it"

    async def effects(self, page_request: PageRequest) -> str:
        return f"Move {page_request.get('move')} ends soon. Moved messages stay in the target."

    async def do(self, page_request: PageRequest) -> ActResult:
        name = page_request.name
        may_delete = await page_request.make_name_test("delete")
        move = await page_request.service.moves.show(page_request.application, page_request.get("move"), may_delete)
        if move.source != name:
            raise MoveNotFound(page_request.get("move"))
        report = await page_request.service.moves.cancel(page_request.application, page_request.get("move"), may_delete)
        return ActResult(text=f"Move {report.id} is {report.state}; it has moved {report.moved} messages.")


class PauseClaims(Act):
    """Sets the option ``claims`` to the attribute ``claims``, whatever it was."""

    name, title, needs = "pause", "Pause the claims", ("admin",)
    place = "acts"
    about = (
        "No claim gets a message until the claims are resumed. Workers keep the messages that they have, and posts and "
        "reads continue."
    )
    claims = "paused"

    async def do(self, page_request: PageRequest) -> ActResult:
        await page_request.service.queues.update(await page_request.enter("admin"), QueueSpec(claims=self.claims))
        return ActResult(text=f"The claims are {self.claims}.")


class ResumeClaims(PauseClaims):
    name, title = "resume", "Resume the claims"
    about = "Waiting claims get messages within a few seconds."
    claims = "open"


class _Offsets(msgspec.Struct, frozen=True):
    """The present offset of each partition, and the requested position."""

    group: str
    position: Position
    partitions: dict[int, GroupOffset]

    @property
    def digest(self) -> str:
        texts = (f"{number}:{present.offset or NO_OFFSET}" for number, present in self.partitions.items())
        return blake2b(",".join(texts).encode(), digest_size=16).hexdigest()

    @property
    def offsets_to_change(self) -> dict[int, GroupOffset]:
        return {n: offset for n, offset in self.partitions.items() if offset.offset != ids.to_hex(self.position)}


class Rewind(Act):
    """Sets the offsets of a group to a position, in one partition or all.

    The preview has the position as an id, so a time is parsed only once; without group or position it has no table.
    Refuses if the offsets are not those of the preview. An offset that a worker commits meanwhile stays, and the result
    says so.
    """

    name, title, needs = "rewind", "Set the offsets of a group", ("claim", "measure")
    logged_fields = ("group", "to", "partition")
    fields = (*logged_fields, "seen")
    previews = True

    async def inputs(self, page_request: PageRequest) -> tuple[Field, ...]:
        hint = "earliest, latest, a time, such as 2026-11-26T09:00Z or -1h, or the id of the last message that is done"
        return (
            Field("group", "Group"),
            Field("to", "To", hint=hint),
            Field("partition", "Partition", hint="Blank: all."),
        )

    async def plan(self, page_request: PageRequest) -> ActPlan:
        about = (
            "Stop the workers of the group first: a running worker continues at its position and records its own "
            "offset again. For groups whose offsets are in ZooKeeper, use qdo offsets."
        )
        if not page_request.get("group") or not page_request.get("to"):
            return ActPlan(about=about)
        offsets = await _parse_offsets(page_request)
        changed, to = offsets.offsets_to_change, ids.to_hex(offsets.position)
        access = await page_request.enter("measure")
        then = await page_request.service.offsets.read_lag(access, dict.fromkeys(changed, offsets.position))
        return ActPlan(
            about=about if changed else f"{about}\nAll offsets are already there.",
            hidden={"seen": offsets.digest, "to": to},
            head=("Partition", "From", "To", "Messages ahead now", "Messages ahead then"),
            rows=[
                (n, present.offset or NO_OFFSET, to, present.lag, then.partitions[n].lag)
                for n, present in changed.items()
            ],
            button="Set the offsets" if changed else "",
        )

    async def do(self, page_request: PageRequest) -> ActResult:
        offsets = await _parse_offsets(page_request)
        if page_request.get("seen") != offsets.digest:
            raise InvalidRequest({"seen": "An offset or the number of partitions has changed. See the new table"})
        changes = [
            OffsetChange(n, offsets.position, ids.parse_position(old.offset) if old.offset else None, compare=True)
            for n, old in offsets.offsets_to_change.items()
        ]
        to = ids.to_hex(offsets.position)
        if not changes:
            return ActResult(text="All offsets were already there, so nothing was changed.")
        try:
            await page_request.service.offsets.record(await page_request.enter("claim"), offsets.group, changes)
        except OffsetConflict as conflict:
            kept = sorted(change.partition for change in changes if change.partition not in conflict.applied)
            rest = f"The offsets of partitions {', '.join(map(str, kept))} were changed meanwhile and stay"
            count = len(changes) - len(kept)
            return ActResult(
                text=f"Set {count} of {len(changes)} offsets of {offsets.group} to {to}. {rest}.", partly=True
            )
        return ActResult(text=f"Set {len(changes)} offsets of group {offsets.group} to {to}.")


async def _parse_offsets(page_request: PageRequest) -> _Offsets:
    access, errors = await page_request.enter("measure"), Errors()
    text = page_request.get("partition") or None
    number = errors.parse_field("partition", validators.parse_integer, text, 1, access.queue.partitions)
    parse = partial(_parse_position, (await page_request.service.queues.describe(access)).horizon)
    position = errors.parse_field("to", parse, page_request.get("to"))
    if position is None:
        errors.setdefault("to", "Missing")
    errors.check()
    assert position is not None  # noqa: S101 - or errors.check() has raised
    present = (await page_request.service.offsets.read_progress(access, page_request.get("group"))).partitions
    partitions = {n: offset for n, offset in present.items() if number in {None, n}}
    return _Offsets(page_request.get("group"), position, partitions)


def _parse_position(horizon: str, value: object) -> Position:
    """Returns the id of the last message that counts as processed: ``earliest``, ``latest``, a time or an id.

    With a time, only the messages before it count as processed; ``latest`` means all before the queue's horizon.

    Raises:
        BadField: The text has another form, or means a time in the future.
    """
    text = validators.parse_text(value)
    if text == "earliest":
        return ids.FIRST
    if text == "latest":
        return ids.preceding(ids.parse_position(horizon))
    try:
        mark = parse_mark(parse_point(text, time.time()))
    except ValueError as error:
        raise validators.BadField(str(error)) from None
    if mark.start[0] > ids.seconds_to_ticks(time.time()):
        raise validators.BadField("Is in the future: the group would skip messages that arrive until then")
    # With an id, its own message counts as processed; with a time, only the messages before it.
    return mark.start if ids.following(mark.start) == mark.end else ids.preceding(mark.start)

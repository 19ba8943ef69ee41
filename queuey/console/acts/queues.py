"""Acts on queues: options, moves, offsets of groups, purge and deletion."""

from __future__ import annotations

import time
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from queuey import ids
from queuey.access import format_principal
from queuey.api.progress import GroupOffset
from queuey.console.acts.act import Act, Deed, Field, Plan
from queuey.console.sessions import Ask
from queuey.errors import InvalidRequest, MoveNotFound, NotAllowed, OffsetConflict
from queuey.ids import Position
from queuey.messages import RESETTABLE, OffsetChange, Queue, QueueSpec, options
from queuey.service import parse_mark
from queuey.time_parsing import point
from queuey.web import validators
from queuey.web.v1.queues import read_spec
from queuey.web.validators import Errors

CHANGED = tuple(name for name, option in options().items() if (option.extra or {})["changes"])
"""Options that can be changed."""

NO_OFFSET = "none"


class ChangeOptions(Act):
    name, title, needs = "options", "Change the options", ("admin",)
    fields = (*CHANGED, "principals", "seen")

    def inputs(self, ask: Ask) -> tuple[Field, ...]:
        now = _texts(ask.enter("admin").queue)
        fields = [
            Field(
                name,
                (option.title or name).capitalize(),
                now[name],
                "choice" if (words := (option.extra_json_schema or {}).get("enum")) else "line",
                hint="" if words else f"{option.description} Blank: the default.",
                choices=tuple((word, word) for word in words or ()),
            )
            for name, option in options().items()
            if name in now
        ]
        principals = Field("principals", "Principals", now["principals"], hint="Separated by commas: app:shop=read")
        return (*fields, principals)

    def plan(self, ask: Ask) -> Plan:
        now = _texts(ask.enter("admin").queue)
        return Plan(
            about="Only what you change here is changed. More partitions cannot become fewer again.",
            hidden={"seen": msgspec.json.encode(now).decode()},
            button="Change the options",
        )

    def do(self, ask: Ask) -> Deed:
        access = ask.enter("admin")
        now = _texts(access.queue)
        seen = _seen(ask, now)
        changed: dict[str, Any] = {name: text for name in now if (text := ask.get(name)) != seen[name]}
        errors = Errors()
        for name, text in changed.items():
            if now[name] != seen[name]:
                errors[name] = f"Somebody has changed it meanwhile, to {now[name] or 'the usual'}"
            elif not text and name not in RESETTABLE:
                errors[name] = "Missing"
        errors.check()
        if not changed:
            return Deed(text="Nothing differs, so nothing was changed.")
        spec = read_spec({name: text for name, text in changed.items() if text}, errors, ask.service.limits)
        errors.check()
        access = ask.enter("admin", dead_letter=spec.dead_letter)
        queue = ask.service.queues.update(access, spec, [name for name, text in changed.items() if not text])
        after = _texts(queue)
        parts = (f"{name} from {now[name] or 'the usual'} to {after[name] or 'the usual'}" for name in sorted(changed))
        return Deed(text=f"Changed {', '.join(parts)}.")


def _seen(ask: Ask, names: Iterable[str]) -> dict[str, str]:
    """Returns the values that the form was made of.

    Raises:
        InvalidRequest: It does not say.
    """
    try:
        seen = msgspec.json.decode(ask.given.get("seen", ""), type=dict[str, str])
        return {name: seen[name] for name in names}
    except (msgspec.DecodeError, KeyError):
        raise InvalidRequest({"seen": "The form does not say what it was made of. Open the page again"}) from None


def _texts(queue: Queue) -> dict[str, str]:
    """Returns the options of a queue as they are typed; an option of 0 is the default and blank."""
    shown = {name: getattr(queue, name) for name in CHANGED}
    delays = msgspec.structs.asdict(queue.backoff) if queue.backoff else {}
    return {
        **{name: _typed(value, blank=not value and name != "read_delay") for name, value in shown.items()},
        "backoff": ",".join(f"{name}={value:g}" for name, value in delays.items()),
        "principals": ",".join(map(format_principal, queue.principals)),
    }


def _typed(value: object, *, blank: bool) -> str:
    if value is None or blank:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


class MoveMessages(Act):
    name, title, needs = "move", "Move the messages", ("read", "delete")
    fields = noted = ("to",)
    about = (
        "All messages that are here now are moved to another queue of the application, except those that a worker has. "
        "This goes on when the page is closed; the page of the queue shows how far it is and can cancel it."
    )
    button = "Move them"

    def inputs(self, ask: Ask) -> tuple[Field, ...]:
        return (Field("to", "To the queue"),)

    def do(self, ask: Ask) -> Deed:
        target = ask.get("to")
        if not target:
            raise InvalidRequest({"to": "Missing"})
        ask.enter("read")
        report = ask.service.moves.begin(ask.enter("delete"), ask.enter("send", target))
        return Deed(text=f"Move {report.id} from {report.source} to {report.target} is {report.state}.")


class CancelMove(Act):
    name, title, needs = "cancel-move", "Cancel a move", ("delete",)
    fields = noted = ("move",)
    button = "Cancel it"

    def effects(self, ask: Ask) -> str:
        return f"Move {ask.get('move')} ends soon. What it has moved stays where it is."

    def do(self, ask: Ask) -> Deed:
        name = ask.name
        may_delete = ask.matching("delete")
        source = ask.service.moves.show(ask.application, ask.get("move"), may_delete).source
        if source != name:
            raise MoveNotFound(ask.get("move"))
        report = ask.service.moves.cancel(ask.application, ask.get("move"), may_delete)
        return Deed(text=f"Move {report.id} is {report.state}; it has moved {report.moved} messages.")


def _count(ask: Ask) -> str:
    """Returns the number of messages in the queue, if the caller may know it."""
    try:
        access = ask.enter("measure")
    except NotAllowed:
        return ""
    return f", about {ask.service.queues.count(access.queue) or 0:,} now"


class PauseClaims(Act):
    name, title, needs = "pause", "Pause the claims", ("admin",)
    about = (
        "Nobody gets a message by a claim until the claims are resumed. Workers keep the messages that they have, and "
        "posts and reads go on."
    )
    claims = "paused"

    def do(self, ask: Ask) -> Deed:
        ask.service.queues.update(ask.enter("admin"), QueueSpec(claims=self.claims))
        return Deed(text=f"The claims are {self.claims}.")


class ResumeClaims(PauseClaims):
    name, title = "resume", "Resume the claims"
    about = "Claims that wait get messages within some seconds."
    claims = "open"


class Purge(Act):
    name, title, needs = "purge", "Purge the queue", ("admin",)
    types_name = destroys = True
    about = "All messages are removed{}, with those that are not due yet. Options and offsets of groups stay."

    def effects(self, ask: Ask) -> str:
        return f"{self.about.format(_count(ask))}\nThis cannot be undone."

    def do(self, ask: Ask) -> Deed:
        count = _count(ask)
        ask.service.queues.purge(ask.enter("admin"))
        return Deed(text=f"Removed all messages{count.removesuffix(' now')}.")


class DeleteQueue(Purge):
    name, title = "delete-queue", "Delete the queue"
    about = "The queue is deleted with all messages{}, its options, and the offsets of its groups."

    def do(self, ask: Ask) -> Deed:
        ask.service.queues.delete(ask.enter("admin"))
        return Deed(text=f"Deleted queue {ask.name}.")


class _Offsets(msgspec.Struct, frozen=True):
    """Present and wanted offset of each partition."""

    group: str
    position: Position
    partitions: dict[int, GroupOffset]

    @property
    def seen(self) -> str:
        """Digest of the offsets that the page showed; it changes when a worker commits."""
        texts = (f"{number}:{one.offset or NO_OFFSET}" for number, one in self.partitions.items())
        return blake2b(",".join(texts).encode(), digest_size=16).hexdigest()

    @property
    def changed(self) -> dict[int, GroupOffset]:
        return {number: one for number, one in self.partitions.items() if one.offset != ids.to_hex(self.position)}


class Rewind(Act):
    name, title, needs = "rewind", "Set the offsets of a group", ("claim", "measure")
    noted = ("group", "to", "partition")
    fields = (*noted, "seen")
    previews = True

    def inputs(self, ask: Ask) -> tuple[Field, ...]:
        hint = "earliest, latest, a time, such as 2026-11-26T09:00Z or -1h, or the id of the last message that is done"
        return (
            Field("group", "Group"),
            Field("to", "To", hint=hint),
            Field("partition", "Partition", hint="Blank: all."),
        )

    def plan(self, ask: Ask) -> Plan:
        about = (
            "Stop the workers of the group first: one that runs goes on where it is, and records its own offset again. "
            "Groups of Qdo keep their offsets in ZooKeeper or in a local file; use qdo offsets for those."
        )
        if not ask.get("group") or not ask.get("to"):
            return Plan(about=about)
        wanted = _offsets(ask)
        changed, to = wanted.changed, ids.to_hex(wanted.position)
        then = ask.service.offsets.lag(ask.enter("measure"), dict.fromkeys(changed, wanted.position)).partitions
        return Plan(
            about=about if changed else f"{about}\nAll offsets are there already.",
            hidden={"seen": wanted.seen, "to": to},
            head=("Partition", "From", "To", "Messages ahead now", "Messages ahead then"),
            rows=[(n, one.offset or NO_OFFSET, to, one.lag, then[n].lag) for n, one in changed.items()],
            button="Set the offsets" if changed else "",
        )

    def do(self, ask: Ask) -> Deed:
        wanted = _offsets(ask)
        if ask.get("seen") != wanted.seen:
            raise InvalidRequest({"seen": "An offset was recorded meanwhile, or partitions came. See the new table"})
        changes = [
            OffsetChange(number, wanted.position, ids.parse_position(one.offset) if one.offset else None, compare=True)
            for number, one in wanted.changed.items()
        ]
        to = ids.to_hex(wanted.position)
        if not changes:
            return Deed(text="All offsets were there already, so nothing was changed.")
        try:
            ask.service.core.run(ask.service.offsets.record(ask.enter("claim"), wanted.group, changes))
        except OffsetConflict as conflict:
            kept = sorted(change.partition for change in changes if change.partition not in conflict.applied)
            said = f"Those of partitions {', '.join(map(str, kept))} were recorded meanwhile and stay"
            count = len(changes) - len(kept)
            return Deed(text=f"Set {count} of {len(changes)} offsets of {wanted.group} to {to}. {said}.", partly=True)
        return Deed(text=f"Set {len(changes)} offsets of group {wanted.group} to {to}.")


def _offsets(ask: Ask) -> _Offsets:
    """Parses the form.

    Raises:
        InvalidRequest: It cannot be.
        GroupNotFound: Nothing is recorded for the group.
    """
    access, errors = ask.enter("measure"), Errors()
    text = ask.get("partition") or None
    number = errors.take("partition", validators.integer, text, 1, access.queue.partitions)
    position = errors.take("to", lambda value: _position(ask, validators.text(value)), ask.get("to"))
    errors.check()
    found = ask.service.offsets.progress(access, ask.get("group")).partitions
    partitions = {each: one for each, one in found.items() if number in {None, each}}
    return _Offsets(ask.get("group"), position or ids.FIRST, partitions)


def _position(ask: Ask, text: str) -> Position:
    """Returns the id of the last message that counts as processed."""
    if text == "earliest":
        return ids.FIRST
    if text == "latest":
        return ids.preceding(ids.parse_position(ask.service.queues.describe(ask.enter("measure")).horizon))
    try:
        mark = parse_mark(point(text, time.time()))
    except ValueError as error:
        raise validators.BadField(str(error)) from None
    if mark.start[0] > ids.seconds_to_ticks(time.time()):
        raise validators.BadField("Lies in the future: the group would pass over messages that come until then")
    # An id is done itself; of an instant what lies before it is.
    return mark.start if ids.following(mark.start) == mark.end else ids.preceding(mark.start)

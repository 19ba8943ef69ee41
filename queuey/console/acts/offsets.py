"""The act on consumer groups: set offsets back or forward."""

from __future__ import annotations

import time
from hashlib import blake2b

import msgspec

from queuey import ids
from queuey.api.progress import GroupOffset
from queuey.console.acts.act import Act, Deed, Field, Plan
from queuey.console.sessions import Ask
from queuey.errors import InvalidRequest, OffsetConflict
from queuey.ids import Position
from queuey.messages import OffsetChange
from queuey.service import parse_mark
from queuey.time_parsing import point
from queuey.web import validators
from queuey.web.validators import Errors

NO_OFFSET = "none"


class _Wanted(msgspec.Struct, frozen=True):
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
        wanted = _wanted(ask)
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
        wanted = _wanted(ask)
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
            ask.service.offsets.record(ask.enter("claim"), wanted.group, changes)
        except OffsetConflict as conflict:
            kept = sorted(change.partition for change in changes if change.partition not in conflict.applied)
            said = f"Those of partitions {', '.join(map(str, kept))} were recorded meanwhile and stay"
            count = len(changes) - len(kept)
            return Deed(text=f"Set {count} of {len(changes)} offsets of {wanted.group} to {to}. {said}.", partly=True)
        return Deed(text=f"Set {len(changes)} offsets of group {wanted.group} to {to}.")


def _wanted(ask: Ask) -> _Wanted:
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
    return _Wanted(ask.get("group"), position or ids.FIRST, partitions)


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

"""Acts on whole queues: options, moves, purge and deletion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from queuey.access import format_principal
from queuey.console.acts.act import Act, Deed, Field, Plan
from queuey.console.sessions import Ask
from queuey.errors import InvalidRequest, MoveNotFound, NotAllowed
from queuey.messages import RESETTABLE, Queue, options
from queuey.web.v1.queues import read_spec
from queuey.web.validators import Errors

CHANGED = tuple(name for name, option in options().items() if (option.extra or {})["changes"])
"""Options that can be changed."""


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

    def inputs(self, ask: Ask) -> tuple[Field, ...]:
        return (Field("to", "To the queue"),)

    def plan(self, ask: Ask) -> Plan:
        return Plan(
            about=(
                "All messages that are here now are moved to another queue of the application, except those that a "
                "worker has. This goes on when the page is closed; the page of the queue shows how far it is and "
                "can cancel it."
            ),
            button="Move them",
        )

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

    def plan(self, ask: Ask) -> Plan:
        return Plan(about=f"Move {ask.get('move')} ends soon. What it has moved stays where it is.", button="Cancel it")

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


class Purge(Act):
    name, title, needs = "purge", "Purge the queue", ("admin",)
    types_name = True
    what = "All messages are removed{}, with those that are not due yet. Options and offsets of groups stay."

    def plan(self, ask: Ask) -> Plan:
        return Plan(about=f"{self.what.format(_count(ask))}\nThis cannot be undone.", button=self.title)

    def do(self, ask: Ask) -> Deed:
        count = _count(ask)
        ask.service.queues.purge(ask.enter("admin"))
        return Deed(text=f"Removed all messages{count.removesuffix(' now')}.")


class DeleteQueue(Purge):
    name, title = "delete-queue", "Delete the queue"
    what = "The queue is deleted with all messages{}, its options, and the offsets of its groups."

    def do(self, ask: Ask) -> Deed:
        ask.service.queues.delete(ask.enter("admin"))
        return Deed(text=f"Deleted queue {ask.name}.")

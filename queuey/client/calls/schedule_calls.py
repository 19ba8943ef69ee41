"""Calls about schedules."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from queuey.client.calls.call import JSON, Call, decode, encode, nothing, queue_segment, reads, string
from queuey.client.calls.send_calls import Outgoing, ToSend, batch_item
from queuey.client.errors import InvalidArgument
from queuey.client.results import Schedule

SCHEDULE_NAME = re.compile(r"(?!\.\.?$)[A-Za-z0-9._:@-]{1,100}")


class SchedulePage(msgspec.Struct, frozen=True):
    """Some schedules, and the name at which the list continues; None: these are the last."""

    schedules: tuple[Schedule, ...]
    more: str | None


def put(name: str, plan: dict[str, Any], message: ToSend | None) -> Call[Schedule]:
    """Creates a schedule, or changes the given fields of one; None: not given."""
    given = {field: value for field, value in plan.items() if value is not None}
    if "queue" in given:
        queue_segment(given["queue"])
    content = encode(given)
    if message is not None:
        item = batch_item(message if isinstance(message, Outgoing) else Outgoing(message))
        content = b'%b%b"message":%b}' % (content[:-1], b"," if given else b"", item)
    return Call("PUT", _path(name), reads(Schedule), headers=JSON, content=content, repeatable=True)


def show(name: str) -> Call[Schedule]:
    return Call("GET", _path(name), reads(Schedule), repeatable=True)


def page(start: str | None) -> Call[SchedulePage]:
    """Lists schedules from a name on."""
    params = () if start is None else (("start", start),)
    return Call("GET", "_schedules", lambda answer: decode(answer, SchedulePage), params=params, repeatable=True)


def delete(name: str) -> Call[None]:
    return Call("DELETE", _path(name), nothing, repeatable=True)


def run(name: str) -> Call[Schedule]:
    return Call("POST", f"{_path(name)}/run", reads(Schedule))


def _path(name: str) -> str:
    if SCHEDULE_NAME.fullmatch(string("name", name)) is None:
        raise InvalidArgument(
            f"no schedule can be named {name!r:.200}: a name has 1 to 100 letters, digits and ._:@-, and is not . or .."
        )
    return f"_schedules/{name}"

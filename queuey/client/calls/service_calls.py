"""Calls about the service itself, moves between queues, and schedules."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from queuey.api.progress import Move, MoveList
from queuey.api.queues import Hello
from queuey.client.calls.call import JSON, Call, check_string, decode, encode, ignore_answer, make_parser, queue_segment
from queuey.client.calls.send_calls import Outgoing, ToSend, batch_item
from queuey.client.errors import InvalidArgument
from queuey.client.results import Schedule

SCHEDULE_NAME = re.compile(r"(?!\.\.?$)[A-Za-z0-9._:@-]{1,100}")
_MOVE = re.compile(r"[0-9a-f]{16}")


def heartbeat() -> Call[None]:
    return Call("GET", "/__heartbeat__", ignore_answer, repeatable=True)


def hello() -> Call[Hello]:
    return Call("GET", "/v1/", make_parser(Hello), repeatable=True)


def version() -> Call[dict[str, Any]]:
    return Call("GET", "/__version__", make_parser(dict[str, Any]), repeatable=True)


def begin_move(source: str, target: str) -> Call[Move]:
    """Begins a move. May be repeated: a move that is under way is returned."""
    for name in (source, target):
        queue_segment(name)
    content = encode({"from": source, "to": target})
    return Call("POST", "_moves", make_parser(Move), headers=JSON, content=content, repeatable=True)


def show_move(move: str) -> Call[Move]:
    return Call("GET", _move_path(move), make_parser(Move), repeatable=True)


def cancel_move(move: str) -> Call[Move]:
    return Call("DELETE", _move_path(move), make_parser(Move), repeatable=True)


def moves() -> Call[tuple[Move, ...]]:
    return Call("GET", "_moves", lambda answer: decode(answer, MoveList).moves, repeatable=True)


def _move_path(move: str) -> str:
    if _MOVE.fullmatch(move) is None:
        raise InvalidArgument(f"{move!r} is not the id of a move: use 16 lower-case hex digits")
    return f"_moves/{move}"


class SchedulePage(msgspec.Struct, frozen=True):
    """A page of schedules, and the name at which the list continues, or None after the last page."""

    schedules: tuple[Schedule, ...]
    more: str | None


def put_schedule(name: str, plan: dict[str, Any], message: ToSend | None) -> Call[Schedule]:
    fields = {field: value for field, value in plan.items() if value is not None}
    if "queue" in fields:
        queue_segment(fields["queue"])
    content = encode(fields)
    if message is not None:
        item = batch_item(message if isinstance(message, Outgoing) else Outgoing(message))
        content = b'%b%b"message":%b}' % (content[:-1], b"," if fields else b"", item)
    return Call("PUT", _schedule_path(name), make_parser(Schedule), headers=JSON, content=content, repeatable=True)


def show_schedule(name: str) -> Call[Schedule]:
    return Call("GET", _schedule_path(name), make_parser(Schedule), repeatable=True)


def schedules(start: str | None) -> Call[SchedulePage]:
    params = () if start is None else (("start", start),)
    return Call("GET", "_schedules", lambda answer: decode(answer, SchedulePage), params=params, repeatable=True)


def delete_schedule(name: str) -> Call[None]:
    return Call("DELETE", _schedule_path(name), ignore_answer, repeatable=True)


def run_schedule(name: str) -> Call[Schedule]:
    return Call("POST", f"{_schedule_path(name)}/run", make_parser(Schedule))


def _schedule_path(name: str) -> str:
    if SCHEDULE_NAME.fullmatch(check_string("name", name)) is None:
        raise InvalidArgument(
            f"{name!r:.200} is not a valid name of a schedule: use 1 to 100 letters, digits and ._:@-, but not . or .."
        )
    return f"_schedules/{name}"

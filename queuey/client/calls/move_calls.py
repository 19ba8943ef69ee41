"""Calls about moves between queues."""

from __future__ import annotations

import re

from queuey.api.progress import Move, MoveList
from queuey.client.calls.call import JSON, Call, decode, encode, queue_segment, reads
from queuey.client.errors import InvalidArgument

_ID = re.compile(r"[0-9a-f]{16}")


def begin(source: str, target: str) -> Call[Move]:
    """Begins a move. While it runs, the same call returns the same move."""
    for name in (source, target):
        queue_segment(name)
    content = encode({"from": source, "to": target})
    return Call("POST", "_moves", reads(Move), headers=JSON, content=content, repeatable=True)


def show(move: str) -> Call[Move]:
    return Call("GET", _path(move), reads(Move), repeatable=True)


def cancel(move: str) -> Call[Move]:
    return Call("DELETE", _path(move), reads(Move), repeatable=True)


def moves() -> Call[tuple[Move, ...]]:
    """Lists moves, the newest first."""
    return Call("GET", "_moves", lambda answer: decode(answer, MoveList).moves, repeatable=True)


def _path(move: str) -> str:
    if _ID.fullmatch(move) is None:
        raise InvalidArgument(f"{move!r} is not the id of a move")
    return f"_moves/{move}"

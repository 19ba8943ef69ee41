"""Calls about consumer groups and how far they have processed a queue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from queuey.api.progress import GroupList, GroupOffset, LagRead, Offsets, RecordedOffsets
from queuey.client.calls.call import (
    JSON,
    Call,
    HttpAnswer,
    decode,
    encode,
    id_text,
    nothing,
    queue_segment,
    reads,
    string,
)
from queuey.client.errors import InvalidArgument
from queuey.client.results import Message, Receipt

Progress = str | Message | Receipt
"""The last message that was processed, or its id."""
_GROUP = re.compile(r"[A-Za-z0-9._:@-]{1,100}")


def commit(
    queue: str, group: str, offsets: Mapping[int, Progress], expected: Mapping[int, Progress | None] | None
) -> Call[dict[int, str | None]]:
    """Records offsets; a partition of ``expected`` only if that is recorded now (None: nothing)."""
    given = expected or {}
    if not offsets or given.keys() - offsets.keys():
        raise InvalidArgument("offsets names at least one partition, and every one that expected names")
    partitions: dict[str, dict[str, Any]] = {}
    for number, progress in offsets.items():
        partitions[str(number)] = {"offset": _id(progress)}
        if number in given:
            before = given[number]
            partitions[str(number)]["expected"] = None if before is None else _id(before)
    content = encode({"partitions": partitions})
    return Call("PUT", _path(queue, group), _set, headers=JSON, content=content)


def offsets(queue: str, group: str) -> Call[Offsets]:
    return Call("GET", _path(queue, group), reads(Offsets), repeatable=True)


def lag(queue: str, cursors: Mapping[int, Progress | None]) -> Call[dict[int, GroupOffset]]:
    given = {number: None if cursor is None else _id(cursor) for number, cursor in cursors.items()}
    content = encode({"partitions": {str(number): cursor for number, cursor in given.items()}})

    def read(answer: HttpAnswer) -> dict[int, GroupOffset]:
        found = decode(answer, LagRead).partitions
        return {
            number: GroupOffset(
                offset=given.get(number),
                updated=None,
                lag=each.lag,
                lag_exact=each.lag_exact,
                lag_seconds=each.lag_seconds,
            )
            for number, each in found.items()
        }

    return Call("POST", f"{queue_segment(queue)}/lag", read, headers=JSON, content=content, repeatable=True)


def groups(queue: str) -> Call[tuple[str, ...]]:
    return Call(
        "GET", f"{queue_segment(queue)}/offsets", lambda answer: decode(answer, GroupList).groups, repeatable=True
    )


def delete_group(queue: str, group: str) -> Call[None]:
    return Call("DELETE", _path(queue, group), nothing)


def _path(queue: str, group: str) -> str:
    segment = queue_segment(queue)
    if _GROUP.fullmatch(string("group", group)) is None or group in {".", ".."}:
        rule = 'a name has 1 to 100 of A-Z a-z 0-9 . _ : @ -, and is not "." or ".."'
        raise InvalidArgument(f"no consumer group can be named {group!r}: {rule}")
    return f"{segment}/offsets/{quote(group, safe='')}"


def _id(progress: Progress) -> str:
    return id_text(progress if isinstance(progress, str) else progress.id)


def _set(answer: HttpAnswer) -> dict[int, str | None]:
    return {number: state.offset for number, state in decode(answer, RecordedOffsets).partitions.items()}

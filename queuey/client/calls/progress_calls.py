"""Calls about how far readers are: offsets and lag of consumer groups, and read marks of users."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from queuey.api.groups import MemberCommits, PartitionCommit
from queuey.api.messages import ReadMark, UnreadQueue, UnreadQueues
from queuey.api.progress import GroupList, GroupOffset, LagRead, Offsets, RecordedOffsets
from queuey.client.calls.call import (
    JSON,
    Call,
    HttpAnswer,
    decode,
    encode,
    id_text,
    location_text,
    named_error,
    nothing,
    number_text,
    queue_segment,
    reads,
    string,
)
from queuey.client.errors import InvalidArgument
from queuey.client.results import Message, Receipt, Unread
from queuey.ids import order_of

Progress = str | Message | Receipt
"""The last message that was processed, or its id."""
Seen = str | Message | Receipt
"""A message that was read: as a call returned it, or as ``partition:id``; or an id alone, for all partitions."""
_GROUP = re.compile(r"[A-Za-z0-9._:@-]{1,100}")
_MEMBER = re.compile(r"[0-9]{1,19}-[0-9a-f]{32}")


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
    return Call("PUT", offsets_path(queue, group), recorded, headers=JSON, content=content)


def commit_as_member(
    queue: str, group: str, member: str, commits: Mapping[int, PartitionCommit]
) -> Call[dict[int, str | None]]:
    """Records offsets of partitions that a member owns. They only go forward, so this may be repeated."""
    if not commits:
        raise InvalidArgument("commits names at least one partition")
    body = MemberCommits(member_id(member), {str(number): each for number, each in commits.items()})
    content = encode(msgspec.to_builtins(body))
    return Call("PUT", offsets_path(queue, group), recorded, headers=JSON, content=content, repeatable=True)


def offsets(queue: str, group: str) -> Call[Offsets]:
    return Call("GET", offsets_path(queue, group), reads(Offsets), repeatable=True)


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
    return Call("DELETE", offsets_path(queue, group), nothing)


def offsets_path(queue: str, group: str) -> str:
    return f"{queue_segment(queue)}/offsets/{group_segment(group)}"


def group_segment(group: str) -> str:
    """Returns a group's name as a path segment. Raises InvalidArgument if no group can have that name."""
    if _GROUP.fullmatch(string("group", group)) is None or group in {".", ".."}:
        rule = 'a name has 1 to 100 of A-Z a-z 0-9 . _ : @ -, and is not "." or ".."'
        raise InvalidArgument(f"no consumer group can be named {group!r}: {rule}")
    return quote(group, safe="")


def member_id(member: str) -> str:
    """Returns the id of a member of a group. Raises InvalidArgument if no member can have it."""
    if _MEMBER.fullmatch(string("member", member)) is None:
        raise InvalidArgument("this is not the id of a member: it has the form <number>-<32 hex digits>")
    return member


def _id(progress: Progress) -> str:
    return id_text(progress if isinstance(progress, str) else progress.id)


def recorded(answer: HttpAnswer) -> dict[int, str | None]:
    return {number: state.offset for number, state in decode(answer, RecordedOffsets).partitions.items()}


def mark_read(queue: str, seen: Iterable[Seen], cursor: str | None, *, back: bool) -> Call[ReadMark]:
    asked: dict[str, Any] = {"back": True} if back else {}
    if cursor is None:
        asked["until"] = _until(list(seen))
    elif any(True for _ in seen):
        raise InvalidArgument("give messages or a cursor, not both")
    else:
        asked["cursor"] = string("cursor", cursor)
    path = f"{queue_segment(queue)}/read"
    # The mark does not go back, so a repetition is harmless; one that goes back goes where it was told.
    return Call("PUT", path, reads(ReadMark), headers=JSON, content=encode(asked), repeatable=True)


def _until(seen: list[Seen]) -> str:
    """Returns the last message of each partition."""
    last: dict[str, str] = {}
    for each in seen:
        if isinstance(each, str) and ":" not in each:
            partition, identifier = "", id_text(each)
        else:
            partition, _, identifier = location_text(each).partition(":")
        last[partition] = max(last.get(partition, identifier), identifier, key=order_of)
    if not last:
        raise InvalidArgument("name at least one message that was read, or a cursor")
    whole = [last.pop("")] if "" in last else []
    return ",".join(whole + [f"{partition}:{identifier}" for partition, identifier in last.items()])


def unread(queues: Iterable[str] | None, limit: int | None) -> Call[tuple[Unread, ...]]:
    """Counts unread messages. Though a POST it changes nothing, so it may be repeated."""
    asked: dict[str, Any] = {}
    if queues is not None:
        asked["queues"] = [queues] if isinstance(queues, str) else list(queues)
        for name in asked["queues"]:
            queue_segment(name)  # It is checked.
    if limit is not None:
        asked["limit"] = int(number_text("limit", limit))
    return Call("POST", "_unread", _unread, headers=JSON, content=encode(asked), repeatable=True)


def _unread(answer: HttpAnswer) -> tuple[Unread, ...]:
    return tuple(
        Unread(queue=each.queue_name, read=each.read, unread=each.unread, more=each.more)
        if isinstance(each, UnreadQueue)
        else Unread(queue=each.queue_name, error=named_error(each.error_msg))
        for each in decode(answer, UnreadQueues).queues
    )

"""Calls about the progress of readers: offsets and lag of consumer groups, and read marks of users."""

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
    check_string,
    decode,
    encode,
    error_from_fields,
    ignore_answer,
    location_text,
    make_parser,
    normalize_id,
    number_text,
    queue_segment,
)
from queuey.client.errors import InvalidArgument
from queuey.client.results import Message, Receipt, Unread
from queuey.model.ids import order_of

Progress = str | Message | Receipt
"""The last message that was processed, or its id."""
Seen = str | Message | Receipt
"""A message that was read, or its ``partition:id``. An id without a partition means all partitions."""
_GROUP = re.compile(r"[A-Za-z0-9._:@-]{1,100}")
_MEMBER = re.compile(r"[0-9]{1,19}-[0-9a-f]{32}")


def commit(
    queue: str, group: str, offsets: Mapping[int, Progress], expected: Mapping[int, Progress | None] | None
) -> Call[dict[int, str | None]]:
    """Records offsets, of a partition in ``expected`` only if the expected one is recorded. Not repeatable.

    Raises InvalidArgument without offsets, or if ``expected`` has a further partition.
    """
    conditions = expected or {}
    if not offsets or conditions.keys() - offsets.keys():
        raise InvalidArgument("offsets must have at least one partition, and all partitions of expected")
    partitions: dict[str, dict[str, Any]] = {}
    for number, progress in offsets.items():
        partitions[str(number)] = {"offset": _progress_id(progress)}
        if number in conditions:
            before = conditions[number]
            partitions[str(number)]["expected"] = None if before is None else _progress_id(before)
    content = encode({"partitions": partitions})
    return Call("PUT", offsets_path(queue, group), read_recorded, headers=JSON, content=content)


def commit_as_member(
    queue: str, group: str, member: str, commits: Mapping[int, PartitionCommit]
) -> Call[dict[int, str | None]]:
    """Records offsets of partitions that a member owns. They only go forward, so the call may be repeated.

    Raises InvalidArgument without a partition.
    """
    if not commits:
        raise InvalidArgument("commits must have at least one partition")
    body = MemberCommits(member_id(member), {str(number): commit for number, commit in commits.items()})
    content = encode(msgspec.to_builtins(body))
    return Call("PUT", offsets_path(queue, group), read_recorded, headers=JSON, content=content, repeatable=True)


def offsets(queue: str, group: str) -> Call[Offsets]:
    return Call("GET", offsets_path(queue, group), make_parser(Offsets), repeatable=True)


def lag(queue: str, cursors: Mapping[int, Progress | None]) -> Call[dict[int, GroupOffset]]:
    """Counts the messages after cursors. The results have the given cursors as offsets, and no time of a commit."""
    cursor_ids = {number: None if cursor is None else _progress_id(cursor) for number, cursor in cursors.items()}
    content = encode({"partitions": {str(number): cursor for number, cursor in cursor_ids.items()}})

    def read(answer: HttpAnswer) -> dict[int, GroupOffset]:
        partitions = decode(answer, LagRead).partitions
        return {
            number: GroupOffset(
                offset=cursor_ids.get(number),
                updated=None,
                lag=partition.lag,
                lag_exact=partition.lag_exact,
                lag_seconds=partition.lag_seconds,
            )
            for number, partition in partitions.items()
        }

    return Call("POST", f"{queue_segment(queue)}/lag", read, headers=JSON, content=content, repeatable=True)


def groups(queue: str) -> Call[tuple[str, ...]]:
    return Call(
        "GET", f"{queue_segment(queue)}/offsets", lambda answer: decode(answer, GroupList).groups, repeatable=True
    )


def delete_group(queue: str, group: str) -> Call[None]:
    return Call("DELETE", offsets_path(queue, group), ignore_answer)


def offsets_path(queue: str, group: str) -> str:
    return f"{queue_segment(queue)}/offsets/{group_segment(group)}"


def group_segment(group: str) -> str:
    if _GROUP.fullmatch(check_string("group", group)) is None or group in {".", ".."}:
        rule = 'use 1 to 100 of A-Z a-z 0-9 . _ : @ -, but not "." or ".."'
        raise InvalidArgument(f"{group!r} is not a valid name of a consumer group: {rule}")
    return quote(group, safe="")


def member_id(member: str) -> str:
    if _MEMBER.fullmatch(check_string("member", member)) is None:
        raise InvalidArgument("not a member id: use the form <number>-<32 hex digits>")
    return member


def _progress_id(progress: Progress) -> str:
    return normalize_id(progress if isinstance(progress, str) else progress.id)


def read_recorded(answer: HttpAnswer) -> dict[int, str | None]:
    return {number: state.offset for number, state in decode(answer, RecordedOffsets).partitions.items()}


def mark_read(queue: str, seen: Iterable[Seen], cursor: str | None, *, back: bool) -> Call[ReadMark]:
    """Moves the read mark to the last of the messages, or to the cursor; never back unless ``back``.

    Raises InvalidArgument for both messages and a cursor, or neither.
    """
    body: dict[str, Any] = {"back": True} if back else {}
    if cursor is None:
        body["until"] = _positions_text(list(seen))
    elif any(True for _ in seen):
        raise InvalidArgument("give messages or a cursor, not both")
    else:
        body["cursor"] = check_string("cursor", cursor)
    path = f"{queue_segment(queue)}/read"
    # Repeatable: without ``back`` the mark never moves back, and with it the mark is set to the same position again.
    return Call("PUT", path, make_parser(ReadMark), headers=JSON, content=encode(body), repeatable=True)


def _positions_text(seen: list[Seen]) -> str:
    last: dict[str, str] = {}
    for message in seen:
        if isinstance(message, str) and ":" not in message:
            partition, identifier = "", normalize_id(message)
        else:
            partition, _, identifier = location_text(message).partition(":")
        last[partition] = max(last.get(partition, identifier), identifier, key=order_of)
    if not last:
        raise InvalidArgument("give at least one message that was read, or a cursor")
    all_partitions = [last.pop("")] if "" in last else []
    return ",".join(all_partitions + [f"{partition}:{identifier}" for partition, identifier in last.items()])


def unread(queues: Iterable[str] | None, limit: int | None) -> Call[tuple[Unread, ...]]:
    """Counts unread messages. A text as ``queues`` is one name. This POST changes nothing, so it may be repeated."""
    body: dict[str, Any] = {}
    if queues is not None:
        body["queues"] = [queues] if isinstance(queues, str) else list(queues)
        for name in body["queues"]:
            queue_segment(name)  # checks the name
    if limit is not None:
        body["limit"] = int(number_text("limit", limit))
    return Call("POST", "_unread", _read_unread, headers=JSON, content=encode(body), repeatable=True)


def _read_unread(answer: HttpAnswer) -> tuple[Unread, ...]:
    return tuple(
        Unread(queue=queue.queue_name, read=queue.read, unread=queue.unread, more=queue.more)
        if isinstance(queue, UnreadQueue)
        else Unread(queue=queue.queue_name, error=error_from_fields(queue.error_msg))
        for queue in decode(answer, UnreadQueues).queues
    )
